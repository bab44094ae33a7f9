#include "peft/methods/delta_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <optional>

#include "nn/layers/saved_weight.h"
#include "nn/ops/column_sums.h"
#include "nn/ops/device.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/gemm.h"
#include "nn/ops/low_rank.h"
#include "nn/ops/matmul.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/recompute.h"

namespace tessera::peft {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The weight, the tensors, `more`, and the input, which loaded() gives back.
void save(AutogradContext* ctx, const at::Tensor& x, const nn::Weight& weight, at::TensorList tensors,
          const variable_list& more = {}) {
  variable_list saved{weight.tensor()};
  saved.insert(saved.end(), tensors.begin(), tensors.end());
  saved.insert(saved.end(), more.begin(), more.end());
  ctx->saved_data["tensors"] = static_cast<std::int64_t>(tensors.size());
  ctx->saved_data["input"] = static_cast<std::int64_t>(saved.size());
  nn::keep_input(ctx, x, saved);
  ctx->save_for_backward(std::move(saved));
  nn::save_weight(ctx, weight);
}

struct Loaded {
  nn::Weight weight;
  std::vector<at::Tensor> tensors, more;
};

Loaded loaded(AutogradContext* ctx, const variable_list& saved) {
  const auto tensors = saved.begin() + 1, more = tensors + ctx->saved_data["tensors"].toInt();
  return {nn::saved_weight(ctx, saved[0]), {tensors, more}, {more, saved.begin() + ctx->saved_data["input"].toInt()}};
}

at::Tensor input_of(AutogradContext* ctx, const variable_list& saved, const at::Tensor& gradient) {
  return nn::kept_input(ctx, saved, static_cast<std::size_t>(ctx->saved_data["input"].toInt()), gradient);
}

/// The gradients of a node's inputs: x, the bias, the tensors; then of the others, which have none.
variable_list gradients(AutogradContext* ctx, const at::Tensor& g, const at::Tensor& gx,
                        const std::vector<at::Tensor>& of_tensors, std::size_t others) {
  variable_list out{gx, {}};
  if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(1)) out[1] = nn::column_sums(g);
  out.insert(out.end(), of_tensors.begin(), of_tensors.end());
  out.insert(out.end(), others, at::Tensor());
  return out;
}

bool sums(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& delta) {
  return !weight.packed() && weight.tensor().scalar_type() == x.scalar_type() &&
         delta.scalar_type() == x.scalar_type() && x.scalar_type() == at::kFloat;
}

class DeltaProduct : public torch::autograd::Function<DeltaProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& bias,
                            at::TensorList tensors, const nn::Weight& weight, const MakeDelta& make, double dropout) {
    save(ctx, x, weight, tensors);
    nn::save_make(ctx, [make](const auto& t) { return std::vector<at::Tensor>{make(t)}; });
    ctx->saved_data["bias"] = bias.has_value();
    const nn::DropoutMask mask(dropout, x.size(0));
    mask.save(ctx);
    const auto delta = make(tensors.vec());
    at::Tensor y;
    if (!mask.drops() && sums(x, weight, delta)) {
      y = nn::gemm(x, (weight.tensor() + delta).t());
    } else {
      y = weight.product(x);
      y.add_(nn::gemm(nn::masked(x.to(delta.scalar_type()), mask), delta.t()));
    }
    return bias ? y.add_(*bias) : y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const auto [weight, tensors, more] = loaded(ctx, saved);
    const auto mask = nn::DropoutMask::load(ctx);
    const nn::Remade made(ctx, tensors);
    const auto& delta = made[0];
    at::Tensor gx;
    if (ctx->needs_input_grad(0)) {
      const auto matrix = delta.detach();
      if (!mask.drops() && sums(g, weight, delta)) {
        gx = nn::gemm(g, weight.tensor() + matrix);
      } else {
        gx = weight.transposed_product(g);
        nn::accumulate_masked(nn::gemm(g.to(matrix.scalar_type()), matrix).to(gx.scalar_type()), gx, mask);
      }
    }
    const auto x = input_of(ctx, saved, gx);
    at::Tensor gd;
    if (delta.requires_grad())
      gd = nn::gemm(g.to(delta.scalar_type()).t(), nn::masked(x.to(delta.scalar_type()), mask));
    return gradients(ctx, g, gx, made.gradients({gd}), 3);
  }
};

// u = dropout(x) a^T, v = scaling * u middle; y = x W^T + v b^T.
class FactorProduct : public torch::autograd::Function<FactorProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& bias,
                            at::TensorList tensors, const nn::Weight& weight, const MakeFactors& make) {
    nn::save_make(ctx, [make](const auto& t) {
      auto made = make(t);
      return std::vector<at::Tensor>{made.a, made.b, made.middle};
    });
    const auto f = [&] {
      const c10::AutoGradMode recorded(true);  // says what trains
      return make(tensors.vec());
    }();
    const auto a = f.a.detach(), b = f.b.detach(), middle = f.middle.defined() ? f.middle.detach() : f.middle;
    const nn::DropoutMask mask(f.dropout, x.size(0));
    const auto u = nn::low_rank_project(nn::masked(x.to(a.scalar_type()), mask), a, middle.defined() ? 1.0 : f.scaling);
    auto y = weight.product(x, middle.defined() ? u * (middle * f.scaling) : u, b.t());
    const bool keeps = f.b.requires_grad() || (middle.defined() && f.middle.requires_grad());
    save(ctx, x, weight, tensors, keeps ? variable_list{u} : variable_list());
    ctx->saved_data["bias"] = bias.has_value();
    ctx->saved_data["scaling"] = f.scaling;
    mask.save(ctx);
    return bias ? y.add_(*bias) : y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const auto [weight, tensors, more] = loaded(ctx, saved);
    const auto mask = nn::DropoutMask::load(ctx);
    const double scaling = ctx->saved_data["scaling"].toDouble();
    const nn::Remade made(ctx, tensors);
    const auto a = made[0].detach(), b = made[1].detach();
    const bool has_middle = made[2].defined();
    const auto middle = has_middle ? made[2].detach() * scaling : at::Tensor();
    const auto narrow = g.to(a.scalar_type());
    auto gu = nn::low_rank_project(narrow, b.t(), has_middle ? 1.0 : scaling);  // of v, and then of u
    at::Tensor ga, gb, gm;
    if (made[1].requires_grad()) gb = nn::low_rank_gradient(has_middle ? more[0] * middle : more[0], narrow).t();
    if (has_middle) {
      if (made[2].requires_grad()) gm = ((gu * more[0]).sum(0, false, at::kFloat) * scaling).to(middle.scalar_type());
      gu.mul_(middle);
    }
    at::Tensor gx;
    if (ctx->needs_input_grad(0)) {
      if (!mask.drops()) {
        gx = weight.transposed_product(g, gu, a);
      } else {
        gx = weight.transposed_product(g);
        nn::accumulate_masked(nn::gemm(gu, a).to(gx.scalar_type()), gx, mask);
      }
    }
    const auto x = input_of(ctx, saved, gx);
    if (made[0].requires_grad()) ga = nn::low_rank_gradient(gu, nn::masked(x.to(a.scalar_type()), mask));
    return gradients(ctx, g, gx, made.gradients({ga, gb, gm}), 2);
  }
};

}  // namespace

at::Tensor delta_product(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& bias,
                         const std::vector<at::Tensor>& tensors, const MakeDelta& make_delta, double dropout) {
  if (!nn::has_kernels(x)) {
    const auto delta = make_delta(tensors);
    const auto y = nn::linear(x, weight.dequantise(x.scalar_type()), bias);
    return (y + nn::linear(nn::dropout(x.to(delta.scalar_type()), dropout), delta)).to(y.scalar_type());
  }
  return nn::over_rows(x, [&](const at::Tensor& rows) {
    return DeltaProduct::apply(rows, nn::optional(bias), at::TensorList(tensors), weight, make_delta, dropout);
  });
}

at::Tensor factor_product(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& bias,
                          const std::vector<at::Tensor>& tensors, const MakeFactors& make_factors) {
  if (!nn::has_kernels(x)) {
    const auto f = make_factors(tensors);
    const auto y = nn::linear(x, weight.dequantise(x.scalar_type()), bias);
    auto u = nn::linear(nn::dropout(x.to(f.a.scalar_type()), f.dropout), f.a);
    if (f.middle.defined()) u = u * f.middle;
    return (y + nn::linear(u, f.b) * f.scaling).to(y.scalar_type());
  }
  return nn::over_rows(x, [&](const at::Tensor& rows) {
    return FactorProduct::apply(rows, nn::optional(bias), at::TensorList(tensors), weight, make_factors);
  });
}

}  // namespace tessera::peft
