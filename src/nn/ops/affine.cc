// affine(): y = x W^T + b as one node.
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "nn/kernels/bf16_gemm.h"
#include "nn/kernels/bf16_tiles.h"
#include "nn/layers/saved_weight.h"
#include "nn/ops/column_sums.h"
#include "nn/ops/device.h"
#include "nn/ops/gemm.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/recompute.h"
#include "tensor/gradient_place.h"

namespace tessera::nn {
namespace {

/// a b, or undefined where it went to the place in which the weight's gradient is collected.
at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b) {
  const auto prepared = tensor::reserve_gradient(weight);
  const auto fits = [&](const at::Tensor& place) {
    return place.device() == a.device() &&
           (place.scalar_type() == a.scalar_type() || (place.scalar_type() == at::kFloat && has_wide_gemm(a)));
  };
  if (!prepared || !fits(prepared->memory)) return gemm(a, b);
  if (prepared->filled)
    gemm_add(prepared->memory, a, b);
  else
    gemm_to(prepared->memory, a, b);
  prepared->place->commit(prepared);
  return {};
}

/// The parameter [in, out] that w [out, in] is the transpose of (GPT-2's Conv1D); undefined where w is none.
at::Tensor transposed_parameter(const at::Tensor& w) {
  if (!w.requires_grad() || !w.is_view()) return {};
  const at::Tensor base(w._base());
  const bool is_transpose = base.is_leaf() && base.dim() == 2 && base.is_contiguous() && base.size(0) == w.size(1) &&
                            base.size(1) == w.size(0) && w.stride(0) == 1 && w.stride(1) == w.size(0) &&
                            base.const_data_ptr() == w.const_data_ptr();
  return is_transpose ? base : at::Tensor();
}

/// x W^T + bias. The bias is two more columns of x and of W where loops of our own then add it before they round.
at::Tensor product_and_bias(const at::Tensor& x, const Weight& weight, const at::Tensor& bias) {
  if (!has_kernels(x) && !weight.packed() && bias.scalar_type() == x.scalar_type())
    return at::addmm(bias, x, weight.tensor().t());
  if (!has_kernels(x) || x.scalar_type() != at::kBFloat16 || bias.scalar_type() != at::kBFloat16 ||
      !kernels::has_bf16_gemm() || (kernels::has_bf16_tiles() && x.size(0) < kernels::kFewestTileRows))
    return weight.product(x).add_(bias);
  const auto ones = at::zeros({x.size(0), 2}, x.options()), columns = at::zeros({bias.size(0), 2}, bias.options());
  ones.select(1, 0).fill_(1);
  columns.select(1, 0).copy_(bias);
  return weight.product(x, ones, columns.t());
}

class Affine : public torch::autograd::Function<Affine> {
 public:
  /// tensor: the weight's, or the parameter that it is the transpose of, whose gradient is then made as it lies.
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& tensor,
                            const std::optional<at::Tensor>& bias, const Weight& weight, bool transposed) {
    torch::autograd::variable_list saved{tensor};
    if (weight.trains()) keep_input(ctx, x, saved);
    ctx->save_for_backward(std::move(saved));
    save_weight(ctx, weight);
    ctx->saved_data["bias"] = bias.has_value();
    ctx->saved_data["transposed"] = transposed;
    return bias ? product_and_bias(x, weight, *bias) : weight.product(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const bool transposed = ctx->saved_data["transposed"].toBool();
    at::Tensor gx, gw, gb;
    if (ctx->needs_input_grad(0)) gx = saved_weight(ctx, transposed ? saved[0].t() : saved[0]).transposed_product(g);
    if (ctx->needs_input_grad(1)) {
      const auto x = kept_input(ctx, saved, 1, gx);
      gw = transposed ? weight_gradient(saved[0], x.t(), g) : weight_gradient(saved[0], g.t(), x);
    }
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) gb = column_sums(g);
    return {gx, gw, gb, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor affine(const at::Tensor& x, const Weight& weight, const at::Tensor& bias) {
  if (!weight.packed() && x.scalar_type() != weight.tensor().scalar_type())
    return at::linear(x, weight.dequantise(x.scalar_type()), bias);
  const auto parameter = transposed_parameter(weight.tensor());
  return over_rows(x, [&](const at::Tensor& rows) {
    return Affine::apply(rows, parameter.defined() ? parameter : weight.tensor(), optional(bias), weight,
                         parameter.defined());
  });
}

}  // namespace tessera::nn
