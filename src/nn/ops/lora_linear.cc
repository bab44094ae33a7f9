#include "nn/ops/lora_linear.h"
#include "nn/ops/column_sums.h"
#include "nn/ops/device.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "nn/layers/saved_weight.h"
#include "nn/ops/dora.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/gemm.h"
#include "nn/ops/low_rank.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/recompute.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The base product and the adapter's, [N, out], and u = scaling * dropout(x) A^T [N, R]. N tokens, R rank.
struct Products {
  at::Tensor y, u;
};

Products products(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, const LowRank& low,
                  const DropoutMask& mask) {
  Products out;
  out.u = low_rank_project(masked(x.to(low.a.scalar_type()), mask), low.a, low.scaling);
  out.y = weight.product(x, out.u, low.b.t());
  if (bias.defined()) out.y.add_(bias);
  return out;
}

/// What backward_of_products() needs comes first, then `more`, then the input.
void save_products(AutogradContext* ctx, const at::Tensor& x, const Weight& weight, const LowRank& low,
                   const at::Tensor& u, const variable_list& more) {
  variable_list saved{weight.tensor(), low.a, low.b, u};
  saved.insert(saved.end(), more.begin(), more.end());
  if (weight.trains() || low.a.requires_grad()) keep_input(ctx, x, saved);
  ctx->save_for_backward(std::move(saved));
  save_weight(ctx, weight);
}

/// Gradients of x, W, A and B; g: [N, out], of the sum of both products. Undefined where not needed (inputs 0 to 3).
/// input: where the saved input begins.
struct ProductGradients {
  at::Tensor x, weight, a, b;
};

ProductGradients backward_of_products(AutogradContext* ctx, const at::Tensor& g, const variable_list& saved,
                                      std::size_t input) {
  const auto mask = DropoutMask::load(ctx);
  const auto weight = saved_weight(ctx, saved[0]);
  const auto &a = saved[1], &u = saved[3];
  const LowRank low{a, saved[2], ctx->saved_data["scaling"].toDouble(), 0};
  const auto ga_in = g.to(a.scalar_type());
  ProductGradients out;
  const auto gu = low_rank_project(ga_in, low.b.t(), low.scaling);  // [N, R]
  if (ctx->needs_input_grad(3)) out.b = low_rank_gradient(u, ga_in).t().contiguous();
  if (ctx->needs_input_grad(0)) {
    if (!mask.drops()) {
      out.x = weight.transposed_product(g, gu, a);
    } else {
      out.x = weight.transposed_product(g);
      accumulate_masked(gemm(gu, a).to(out.x.scalar_type()), out.x, mask);
    }
  }
  if (!ctx->needs_input_grad(1) && !ctx->needs_input_grad(2)) return out;
  const auto x = kept_input(ctx, saved, input, out.x);
  if (ctx->needs_input_grad(2)) out.a = low_rank_gradient(gu, masked(x.to(a.scalar_type()), mask));
  if (ctx->needs_input_grad(1)) out.weight = weight.gradient(g, x);
  return out;
}

class LoraLinear : public torch::autograd::Function<LoraLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor&, const at::Tensor& a,
                            const at::Tensor& b, const std::optional<at::Tensor>& bias, const Weight& weight,
                            double scaling, double p) {
    const DropoutMask mask(p, x.size(0));
    const LowRank low{a, b, scaling, p};
    const auto [y, u] = products(x, weight, bias.value_or(at::Tensor()), low, mask);
    save_products(ctx, x, weight, low, u, {});
    ctx->saved_data["bias"] = bias.has_value();
    ctx->saved_data["scaling"] = scaling;
    mask.save(ctx);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const auto [gx, gw, ga, gb] = backward_of_products(ctx, g, saved, 4);
    const bool wants_bias = ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(4);
    return {gx, gw, ga, gb, wants_bias ? column_sums(g) : at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// With c = magnitude / norms: y = c z + bias, z the sum of both products. z is kept for the magnitude's gradient.
class DoraLinear : public torch::autograd::Function<DoraLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor&, const at::Tensor& a,
                            const at::Tensor& b, const at::Tensor& magnitude, const at::Tensor& norms,
                            const std::optional<at::Tensor>& bias, const Weight& weight, double scaling, double p) {
    const DropoutMask mask(p, x.size(0));
    const LowRank low{a, b, scaling, p};
    const auto [z, u] = products(x, weight, {}, low, mask);
    const auto c = (magnitude / norms).to(z.scalar_type());
    save_products(ctx, x, weight, low, u, {z, c, norms});
    ctx->saved_data["bias"] = bias.has_value();
    ctx->saved_data["magnitude_dtype"] = static_cast<std::int64_t>(magnitude.scalar_type());
    ctx->saved_data["scaling"] = scaling;
    mask.save(ctx);
    return bias ? at::addcmul(*bias, z, c) : z * c;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const auto &z = saved[4], &c = saved[5], &norms = saved[6];
    const auto [gx, gw, ga, gb] = backward_of_products(ctx, g * c, saved, 7);
    const bool wants_bias = ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(6);
    at::Tensor gm;
    if (ctx->needs_input_grad(4)) {
      gm = ((g * z).sum(0, false, at::kFloat) / norms)
               .to(static_cast<at::ScalarType>(ctx->saved_data["magnitude_dtype"].toInt()));
    }
    const auto gb_out = wants_bias ? column_sums(g) : at::Tensor();
    return {gx, gw, ga, gb, gm, at::Tensor(), gb_out, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

/// W a^T [out, R], without grad.
at::Tensor product_with_rows(const Weight& weight, const at::Tensor& a, at::ScalarType compute) {
  if (weight.packed() && has_kernels(weight.tensor())) return weight.of_values().product(a.to(compute)).t();
  const auto w = weight.dequantise(compute).detach();
  return gemm(w, a.to(w.scalar_type()).t());
}

}  // namespace

at::Tensor lora_linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, const LowRank& low) {
  return over_rows(x, [&](const at::Tensor& rows) {
    return LoraLinear::apply(rows, weight.tensor(), low.a, low.b, optional(bias), weight, low.scaling, low.dropout);
  });
}

at::Tensor dora_linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, const LowRank& low,
                       const at::Tensor& magnitude, const at::Tensor& squares) {
  const auto a = low.a.detach();
  const auto wa = product_with_rows(weight, a, x.scalar_type());
  const auto norms = adapted_norms(squares, wa, a, low.b.detach(), low.scaling);
  return over_rows(x, [&](const at::Tensor& rows) {
    return DoraLinear::apply(rows, weight.tensor(), low.a, low.b, magnitude, norms, optional(bias), weight, low.scaling,
                             low.dropout);
  });
}

}  // namespace tessera::nn
