#include "nn/ops/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/composite/composite.h"
#include "nn/kernels/row_kernels.h"
#include "nn/ops/device.h"
#include "nn/ops/recompute.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The weight as float32, plus offset; perhaps the weight itself.
at::Tensor shifted(const at::Tensor& weight, double offset) {
  const auto w = weight.detach().to(at::kFloat).contiguous();
  return offset == 0.0 ? w : w + offset;
}

// rstd: [rows], written, or null.
void normalise(const at::Tensor& x, const at::Tensor& scale, float eps, const at::Tensor& y, float* rstd) {
  const std::int64_t n = x.size(-1), rows = n == 0 ? 0 : x.numel() / n;
  const float* w = scale.const_data_ptr<float>();
  for_rows(rows, n, [&](std::int64_t first, std::int64_t last) {
    ReadRow in(x, n);
    WriteRow out(y, n);
    for (std::int64_t r = first; r < last; ++r) {
      const float stat = kernels::rms_norm(in.at(r * n), w, out.at(r * n), n, eps);
      if (rstd) rstd[r] = stat;
      out.store();
    }
  });
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, const at::Tensor& weight, double eps,
                            double offset, bool recorded) {
    const auto x = x_in.contiguous();
    const bool narrow = weight.scalar_type() == at::kBFloat16 || weight.scalar_type() == at::kHalf;
    const auto y = at::empty(x.sizes(), x.options().dtype(narrow ? weight.scalar_type() : at::result_type(x, weight)));
    const std::int64_t n = x.size(-1), rows = n == 0 ? 0 : x.numel() / n;
    const auto rstd = at::empty({rows}, x.options().dtype(at::kFloat));
    const auto scale = shifted(weight, offset);
    normalise(x, scale, static_cast<float>(eps), y, rstd.mutable_data_ptr<float>());
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data["offset"] = offset;
    if (recorded) {
      const auto kept = scale.is_alias_of(weight) ? scale.clone() : scale;  // the weight may be elsewhere by then
      set_recipe(y, {x}, [kept, eps, dtype = y.scalar_type()](const std::vector<at::Tensor>& sources) {
        const auto again = at::empty(sources[0].sizes(), sources[0].options().dtype(dtype));
        normalise(sources[0], kept, static_cast<float>(eps), again, nullptr);
        return again;
      });
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const float* stat = saved[2].const_data_ptr<float>();
    const auto gy = grads[0].contiguous();
    const std::int64_t n = x.size(-1), rows = n == 0 ? 0 : x.numel() / n;
    at::Tensor gx, gw;
    if (ctx->needs_input_grad(0)) gx = at::empty_like(x);
    if (ctx->needs_input_grad(1)) gw = at::zeros({n}, x.options().dtype(at::kFloat));
    const auto scale = shifted(weight, ctx->saved_data["offset"].toDouble());
    const float* w = scale.const_data_ptr<float>();
    // Threads would have to add into one weight gradient, so its rows are walked by one.
    const auto body = [&](std::int64_t first, std::int64_t last) {
      ReadRow g(gy, n), in(x, n);
      WriteRow out(gx, n);
      float* total = gw.defined() ? gw.mutable_data_ptr<float>() : nullptr;
      for (std::int64_t r = first; r < last; ++r) {
        kernels::rms_norm_backward(g.at(r * n), {in.at(r * n), w, n, stat[r]}, out.at(r * n), total);
        out.store();
      }
    };
    if (gw.defined()) {
      body(0, rows);
      gw = gw.to(weight.scalar_type());
    } else {
      for_rows(rows, n, body);
    }
    return {gx, gw, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset) {
  if (!has_kernels(x)) return composite::rms_norm(x, weight, eps, offset);
  return RmsNormFunction::apply(x, weight, eps, offset, at::GradMode::is_enabled());
}

}  // namespace tessera::nn
