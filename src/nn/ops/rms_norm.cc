#include "nn/ops/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/composite/composite.h"
#include "nn/kernels/norm_kernels.h"
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

template <class T>
void rms_norm_rows(const at::Tensor& x, const at::Tensor& scale, float eps, const at::Tensor& y, float* rstd) {
  const std::int64_t n = x.size(-1);
  const auto* from = static_cast<const T*>(x.const_data_ptr());
  auto* to = static_cast<T*>(y.mutable_data_ptr());
  const float* w = scale.const_data_ptr<float>();
  for_rows(n == 0 ? 0 : x.numel() / n, n, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const float found = kernels::rms_norm(kernels::RmsNormRow<T>{from + r * n, w, to + r * n, n, eps});
      if (rstd) rstd[r] = found;
    }
  });
}

/// x's rows normalised and scaled, as dtype. rstd: [rows], written, or null.
at::Tensor rms_normed(const at::Tensor& x, const at::Tensor& scale, float eps, at::ScalarType dtype, float* rstd) {
  if (x.scalar_type() != dtype || !is_float_or_bfloat16(dtype)) {
    const auto wide = x.to(at::kFloat), y = at::empty_like(wide);
    rms_norm_rows<float>(wide, scale, eps, y, rstd);
    return y.to(dtype);
  }
  const auto y = at::empty(x.sizes(), x.options());
  (dtype == at::kFloat ? rms_norm_rows<float> : rms_norm_rows<std::uint16_t>)(x, scale, eps, y, rstd);
  return y;
}

/// What backward was given and asked for; gx and the weight's gradient, float32, may be undefined.
struct RmsNormBackward {
  at::Tensor gy, x, scale, rstd, gx = {}, weight_gradient = {};
};

template <class T>
void rms_norm_gradient_rows(const RmsNormBackward& b) {
  const std::int64_t n = b.x.size(-1), rows = n == 0 ? 0 : b.x.numel() / n;
  const auto *gy = static_cast<const T*>(b.gy.const_data_ptr()), *x = static_cast<const T*>(b.x.const_data_ptr());
  auto* gx = b.gx.defined() ? static_cast<T*>(b.gx.mutable_data_ptr()) : nullptr;
  const float *w = b.scale.const_data_ptr<float>(), *rstd = b.rstd.const_data_ptr<float>();
  float* gw = b.weight_gradient.defined() ? b.weight_gradient.mutable_data_ptr<float>() : nullptr;
  const auto body = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      kernels::rms_norm_gradient(
          kernels::RmsNormGradientRow<T>{gy + r * n, x + r * n, w, rstd[r], gx ? gx + r * n : nullptr, gw, n});
  };
  // Threads would have to add into one weight gradient, so its rows are walked by one.
  gw ? body(0, rows) : for_rows(rows, n, body);
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, const at::Tensor& weight, double eps,
                            double offset, bool recorded) {
    const auto x = x_in.contiguous();
    const bool narrow = weight.scalar_type() == at::kBFloat16 || weight.scalar_type() == at::kHalf;
    const auto dtype = narrow ? weight.scalar_type() : at::result_type(x, weight);
    const std::int64_t n = x.size(-1), rows = n == 0 ? 0 : x.numel() / n;
    const auto rstd = at::empty({rows}, x.options().dtype(at::kFloat));
    const auto scale = shifted(weight, offset);
    const auto y = rms_normed(x, scale, static_cast<float>(eps), dtype, rstd.mutable_data_ptr<float>());
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data["offset"] = offset;
    if (recorded) {
      const auto kept = scale.is_alias_of(weight) ? scale.clone() : scale;  // the weight may be elsewhere by then
      set_recipe(y, {x}, [kept, eps, dtype](const std::vector<at::Tensor>& sources) {
        return rms_normed(sources[0], kept, static_cast<float>(eps), dtype, nullptr);
      });
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const bool native = grads[0].scalar_type() == x.scalar_type() && is_float_or_bfloat16(x.scalar_type());
    const auto dtype = native ? x.scalar_type() : at::kFloat;
    RmsNormBackward b{grads[0].to(dtype).contiguous(), x.to(dtype),
                      shifted(weight, ctx->saved_data["offset"].toDouble()), saved[2]};
    if (ctx->needs_input_grad(0)) b.gx = at::empty_like(b.x);
    if (ctx->needs_input_grad(1)) b.weight_gradient = at::zeros({x.size(-1)}, x.options().dtype(at::kFloat));
    (dtype == at::kFloat ? rms_norm_gradient_rows<float> : rms_norm_gradient_rows<std::uint16_t>)(b);
    const auto as = [](const at::Tensor& t, const at::Tensor& like) {
      return t.defined() ? t.to(like.scalar_type()) : t;
    };
    return {as(b.gx, x), as(b.weight_gradient, weight), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset) {
  if (!has_kernels(x)) return composite::rms_norm(x, weight, eps, offset);
  return RmsNormFunction::apply(x, weight, eps, offset, at::GradMode::is_enabled());
}

}  // namespace tessera::nn
