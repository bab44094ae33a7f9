// affine(): y = x W^T + b as one node.
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "nn/layers/saved_weight.h"
#include "nn/ops/device.h"
#include "nn/ops/gemm.h"
#include "nn/ops/remake.h"
#include "tensor/gradient_place.h"

namespace tessera::nn {
namespace {

/// a b, or undefined where it went to the place in which the weight's gradient is collected.
at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b) {
  const auto prepared = tensor::reserve_gradient(weight);
  if (!prepared || prepared->memory.scalar_type() != a.scalar_type()) return gemm(a, b);
  if (prepared->filled)
    gemm_add(prepared->memory, a, b);
  else
    gemm_to(prepared->memory, a, b);
  prepared->place->commit(prepared);
  return {};
}

class Affine : public torch::autograd::Function<Affine> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& tensor,
                            const std::optional<at::Tensor>& bias, const Weight& weight) {
    torch::autograd::variable_list saved{tensor};
    if (weight.trains()) keep_input(ctx, x, saved);
    ctx->save_for_backward(std::move(saved));
    save_weight(ctx, weight);
    ctx->saved_data["bias"] = bias.has_value();
    auto y = weight.product(x);
    return bias ? y.add_(*bias) : y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    at::Tensor gx, gw, gb;
    if (ctx->needs_input_grad(0)) gx = saved_weight(ctx, saved[0]).transposed_product(g);
    if (ctx->needs_input_grad(1)) gw = weight_gradient(saved[0], g.t(), kept_input(ctx, saved, 1, gx));
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) gb = g.sum(0);
    return {gx, gw, gb, at::Tensor()};
  }
};

}  // namespace

at::Tensor affine(const at::Tensor& x, const Weight& weight, const at::Tensor& bias) {
  if (!has_kernels(x) || (!weight.packed() && x.scalar_type() != weight.tensor().scalar_type()))
    return at::linear(x, weight.dequantise(x.scalar_type()), bias);
  const auto rows = x.dim() == 2 ? x.contiguous() : x.reshape({-1, x.size(-1)});
  const auto offset = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  auto y = Affine::apply(rows, weight.tensor(), offset, weight);
  if (x.dim() == 2) return y;
  auto sizes = x.sizes().vec();
  sizes.back() = weight.out_features();
  return y.view(sizes);
}

}  // namespace tessera::nn
