#include "nn/lora_linear.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "nn/dropout_ops.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor masked(const at::Tensor& x, const kernels::Mask& mask) {
  if (mask.threshold == 0 && mask.scale == 1.0f) return x;
  const auto y = at::empty_like(x);
  apply_mask(x, y, mask);
  return y;
}

// y += scale * (left right), y perhaps of another dtype.
void add_product(const at::Tensor& y, const at::Tensor& left, const at::Tensor& right, double scale) {
  if (y.scalar_type() == left.scalar_type()) {
    y.addmm_(left, right, 1, scale);
  } else {
    y.add_(at::mm(left, right), scale);
  }
}

class LoraLinear : public torch::autograd::Function<LoraLinear> {
 public:
  // N tokens, R rank: x [N, in], u = dropout(x) A^T [N, R].
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& a,
                            const at::Tensor& b, const std::optional<at::Tensor>& bias, double scaling, double p) {
    const auto key = p > 0 ? tensor::next_key() : tensor::RandomKey{};
    const auto y = at::linear(x, weight, bias.value_or(at::Tensor()));
    const auto u = at::mm(masked(x.to(a.scalar_type()), kernels::make_mask(p, key)), a.t());
    add_product(y, u, b.t(), scaling);
    ctx->save_for_backward({x, weight, a, b, u});
    ctx->saved_data["scaling"] = scaling;
    ctx->saved_data["p"] = p;
    ctx->saved_data["bias"] = bias.has_value();
    ctx->saved_data["key"] = static_cast<std::int64_t>(std::uint64_t{key.b} << 32 | key.a);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &a = saved[2], &b = saved[3], &u = saved[4];
    const double scaling = ctx->saved_data["scaling"].toDouble();
    const auto packed = static_cast<std::uint64_t>(ctx->saved_data["key"].toInt());
    const auto mask = kernels::make_mask(ctx->saved_data["p"].toDouble(), {static_cast<std::uint32_t>(packed),
                                                                           static_cast<std::uint32_t>(packed >> 32)});
    const auto g = grads[0].contiguous(), ga_in = g.to(a.scalar_type());
    at::Tensor gx, gw, gbias, ga, gb;
    const auto gu = at::mm(ga_in, b).mul_(scaling);  // [N, R]
    if (ctx->needs_input_grad(3)) gb = at::mm(ga_in.t(), u).mul_(scaling);
    if (ctx->needs_input_grad(2)) ga = at::mm(gu.t(), masked(x.to(a.scalar_type()), mask));
    if (ctx->needs_input_grad(1)) gw = at::mm(g.t(), x);
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(4)) gbias = g.sum(0);
    if (ctx->needs_input_grad(0)) {
      gx = at::mm(g, weight);
      if (mask.threshold == 0) {
        add_product(gx, gu, a, 1.0);
      } else {
        accumulate_masked(at::mm(gu, a).to(gx.scalar_type()), gx, mask);
      }
    }
    return {gx, gw, ga, gb, gbias, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor lora_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& a,
                       const at::Tensor& b, double scaling, double dropout) {
  const auto shift = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  if (x.dim() == 2) return LoraLinear::apply(x.contiguous(), weight, a, b, shift, scaling, dropout);
  auto sizes = x.sizes().vec();
  const auto y = LoraLinear::apply(x.reshape({-1, sizes.back()}), weight, a, b, shift, scaling, dropout);
  sizes.back() = weight.size(0);
  return y.view(sizes);
}

}  // namespace tessera::nn
