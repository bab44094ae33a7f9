#include "nn/ops/layer_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "nn/kernels/norm_kernels.h"
#include "nn/ops/device.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/recompute.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const float* floats_or_null(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}
float* mutable_floats_or_null(const at::Tensor& t) {
  return t.defined() ? t.mutable_data_ptr<float>() : nullptr;
}

at::Tensor as_floats(const std::optional<at::Tensor>& t) {
  return t && t->defined() ? t->detach().to(at::kFloat).contiguous() : at::Tensor();
}

/// weight and bias as float32, or undefined.
struct NormWeights {
  at::Tensor weight, bias;
  double eps;
};

template <class T>
void norm_rows(const at::Tensor& x, const NormWeights& affine, const at::Tensor& y, kernels::Moments* moments) {
  const std::int64_t n = x.size(-1);
  const auto* from = static_cast<const T*>(x.const_data_ptr());
  auto* to = static_cast<T*>(y.mutable_data_ptr());
  const float *w = floats_or_null(affine.weight), *b = floats_or_null(affine.bias);
  for_rows(x.numel() / n, n, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const auto found = kernels::layer_norm(
          kernels::LayerNormRow<T>{from + r * n, w, b, to + r * n, n, static_cast<float>(affine.eps)});
      if (moments) moments[r] = found;
    }
  });
}

/// moments: [rows], written, or null.
at::Tensor normed(const at::Tensor& x, const NormWeights& affine, kernels::Moments* moments) {
  const auto dtype = x.scalar_type();
  if (!is_float_or_bfloat16(dtype)) return normed(x.to(at::kFloat), affine, moments).to(dtype);
  const auto y = at::empty(x.sizes(), x.options());
  (dtype == at::kFloat ? norm_rows<float> : norm_rows<std::uint16_t>)(x, affine, y, moments);
  return y;
}

/// What backward was given and asked for. weight: float32 or undefined; gx may be undefined, sums too: [parts, n] of
/// the two parameters' gradients.
struct Backward {
  at::Tensor gy, x, weight, moments, gx, weight_sums, bias_sums;
};

/// Each part sums some of the rows.
template <class T>
void gradient_rows(const Backward& b, std::int64_t parts) {
  const std::int64_t n = b.x.size(-1), rows = b.x.numel() / n, share = (rows + parts - 1) / parts;
  const auto* moments = reinterpret_cast<const kernels::Moments*>(b.moments.const_data_ptr<float>());
  const auto *gy = static_cast<const T*>(b.gy.const_data_ptr()), *x = static_cast<const T*>(b.x.const_data_ptr());
  auto* gx = b.gx.defined() ? static_cast<T*>(b.gx.mutable_data_ptr()) : nullptr;
  at::parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const auto sums = [&](const at::Tensor& t) {
        return t.defined() ? mutable_floats_or_null(t) + part * n : nullptr;
      };
      float *gw = sums(b.weight_sums), *gb = sums(b.bias_sums);
      for (std::int64_t r = part * share; r < std::min(rows, (part + 1) * share); ++r)
        kernels::layer_norm_gradient(kernels::LayerNormGradientRow<T>{
            gy + r * n, x + r * n, floats_or_null(b.weight), moments[r], gx ? gx + r * n : nullptr, gw, gb, n});
    }
  });
}

std::int64_t parts_of(std::int64_t rows, std::int64_t n) {
  const std::int64_t fewest = std::max<std::int64_t>(1, kGrain / n);  // rows
  return std::clamp<std::int64_t>(rows / fewest, 1, at::get_num_threads());
}

class LayerNormFunction : public torch::autograd::Function<LayerNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& given, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, double eps, bool recorded) {
    const auto x = given.contiguous();
    const NormWeights affine{as_floats(weight), as_floats(bias), eps};
    const auto moments = at::empty({x.numel() / x.size(-1), 2}, x.options().dtype(at::kFloat));
    const auto y = normed(x, affine, reinterpret_cast<kernels::Moments*>(moments.mutable_data_ptr<float>()));
    ctx->save_for_backward({x, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()), moments});
    if (!recorded) return y;
    // Parameters may be elsewhere by the time of the recipe.
    const auto own = [](const at::Tensor& t, const std::optional<at::Tensor>& of) {
      return t.defined() && t.is_alias_of(*of) ? t.clone() : t;
    };
    const NormWeights kept{own(affine.weight, weight), own(affine.bias, bias), eps};
    set_recipe(y, {x}, [kept](const auto& sources) { return normed(sources[0], kept, nullptr); });
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &weight = saved[1], &bias = saved[2];
    const auto dtype = saved[0].scalar_type();
    const bool native = is_float_or_bfloat16(dtype);
    const std::int64_t n = saved[0].size(-1), parts = parts_of(saved[0].numel() / n, n);
    Backward b{grads[0].contiguous(), saved[0], as_floats(weight), saved[3], {}, {}, {}};
    if (!native) b.gy = b.gy.to(at::kFloat), b.x = b.x.to(at::kFloat);
    if (ctx->needs_input_grad(0)) b.gx = at::empty_like(b.x);
    const auto sums = [&](std::size_t input, const at::Tensor& parameter) {
      return parameter.defined() && ctx->needs_input_grad(input) ? at::zeros({parts, n}, b.moments.options())
                                                                 : at::Tensor();
    };
    b.weight_sums = sums(1, weight);
    b.bias_sums = sums(weight.defined() ? 2 : 1, bias);  // what is not given is no input
    (b.x.scalar_type() == at::kFloat ? gradient_rows<float> : gradient_rows<std::uint16_t>)(b, parts);
    const auto total = [](const at::Tensor& t, const at::Tensor& parameter) {
      if (!t.defined()) return t;
      return (t.size(0) == 1 ? t[0] : t.sum(0)).to(parameter.scalar_type());
    };
    return {native || !b.gx.defined() ? b.gx : b.gx.to(dtype), total(b.weight_sums, weight), total(b.bias_sums, bias),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  if (!has_kernels(x) || x.numel() == 0 || x.scalar_type() == at::kDouble)
    return at::layer_norm(x, {x.size(-1)}, weight, bias, eps);
  return LayerNormFunction::apply(x, optional(weight), optional(bias), eps, at::GradMode::is_enabled());
}

}  // namespace tessera::nn
