#include "nn/ops/expert_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/kernels/row_kernels.h"
#include "nn/ops/device.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Others are left to libtorch's operators.
bool has_row_loops(const at::Tensor& t) {
  return has_kernels(t) && is_float_or_bfloat16(t.scalar_type());
}

/// Calls f(x) with a number of the kernels' type for t's dtype.
template <class F>
void with_number(const at::Tensor& t, const F& f) {
  t.scalar_type() == at::kFloat ? f(float{}) : f(std::uint16_t{});
}
template <class T>
T* data_of(const at::Tensor& t, T) {
  return static_cast<T*>(t.data_ptr());
}

/// Row i of some expert's rows belongs to this row of all tokens.
class TokenOfRow {
 public:
  explicit TokenOfRow(const at::Tensor& tokens)
      : tokens_(tokens.defined() ? tokens.const_data_ptr<std::int64_t>() : nullptr) {}
  std::int64_t operator()(std::int64_t i) const { return tokens_ ? tokens_[i] : i; }

 private:
  const std::int64_t* tokens_;
};

/// to[tokens[i]] += weights[i] * from[i], each product rounded to the tensors' dtype; without weights += from[i].
void add_rows(const at::Tensor& to, const at::Tensor& from, const at::Tensor& weights, const at::Tensor& tokens) {
  if (!has_row_loops(to)) {
    const auto products = weights.defined() ? from * weights.unsqueeze(1) : from;
    tokens.defined() ? to.index_add_(0, tokens, products) : to.add_(products);
    return;
  }
  const std::int64_t n = from.size(1);
  const TokenOfRow token(tokens);
  const auto factors = weights.defined() ? weights.to(at::kFloat).contiguous() : at::Tensor();
  const auto* factor = factors.defined() ? factors.const_data_ptr<float>() : nullptr;
  with_number(to, [&](auto number) {
    const auto* x = data_of(from, number);
    auto* sums = data_of(to, number);
    for_rows(from.size(0), n, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        kernels::add_scaled(x + i * n, factor ? factor[i] : 1.0f, sums + token(i) * n, n);
    });
  });
}

class TakeRows : public torch::autograd::Function<TakeRows> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& tokens) {
    ctx->save_for_backward({tokens});
    ctx->saved_data["rows"] = x.size(0);
    return {at::index_select(x, 0, tokens), x};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto &g = grads[0], &rest = grads[1];
    if (!g.defined()) return {rest, at::Tensor()};
    const auto gx = rest.defined() ? rest : at::zeros({ctx->saved_data["rows"].toInt(), g.size(1)}, g.options());
    add_rows(gx, g.contiguous(), /*weights=*/{}, ctx->get_saved_variables()[0]);
    return {gx, at::Tensor()};
  }
};

/// The gradients of y and of the weights, from that of all tokens.
void split_gradient(const at::Tensor& g, const at::Tensor& y, const at::Tensor& weights, const at::Tensor& tokens,
                    at::Tensor& gy, at::Tensor& gweights) {
  if (!has_row_loops(g)) {
    const auto rows = tokens.defined() ? g.index_select(0, tokens) : g;
    gy = rows * weights.unsqueeze(1);
    gweights = (rows * y).sum(1);
    return;
  }
  const std::int64_t n = g.size(1);
  const auto factors = weights.to(at::kFloat).contiguous(), dots = at::empty_like(factors);
  gy = at::empty_like(y);
  const auto* factor = factors.const_data_ptr<float>();
  auto* dot = dots.mutable_data_ptr<float>();
  const TokenOfRow token(tokens);
  with_number(g, [&](auto number) {
    const auto *from = data_of(g, number), *values = data_of(y, number);
    auto* to = data_of(gy, number);
    for_rows(y.size(0), n, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        dot[i] = kernels::scale_and_dot(from + token(i) * n, values + i * n, factor[i], to + i * n, n);
    });
  });
  gweights = dots.to(weights.scalar_type());
}

class AddWeightedRows : public torch::autograd::Function<AddWeightedRows> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& out, const at::Tensor& y_in,
                            const at::Tensor& weights, const std::optional<at::Tensor>& tokens) {
    const auto y = y_in.contiguous();
    add_rows(out, y, weights, tokens.value_or(at::Tensor()));
    ctx->mark_dirty({out});
    ctx->save_for_backward({y, weights, tokens.value_or(at::Tensor())});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    at::Tensor gy, gweights;
    split_gradient(grads[0].contiguous(), saved[0], saved[1], saved[2], gy, gweights);
    return {grads[0], gy, gweights, at::Tensor()};
  }
};

/// Rows `places` [T, K] of y: [T, K, D].
at::Tensor rows_of_tokens(const at::Tensor& y, const at::Tensor& places) {
  return y.index_select(0, places.flatten()).view({places.size(0), places.size(1), y.size(1)});
}

class SpreadRows : public torch::autograd::Function<SpreadRows> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& tokens,
                            const at::Tensor& places) {
    ctx->save_for_backward({places});
    return x.index_select(0, tokens);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {rows_of_tokens(grads[0], ctx->get_saved_variables()[0]).sum(1), at::Tensor(), at::Tensor()};
  }
};

class WeightedSums : public torch::autograd::Function<WeightedSums> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& weights,
                            const at::Tensor& tokens, const at::Tensor& places) {
    ctx->save_for_backward({y, weights, tokens, places});
    return rows_of_tokens(y, places).mul_(weights.unsqueeze(2)).sum(1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &g = grads[0], &y = saved[0], &weights = saved[1], &tokens = saved[2], &places = saved[3];
    at::Tensor gy, gweights;
    if (ctx->needs_input_grad(0)) {
      const auto weight_of_row = at::zeros({y.size(0)}, weights.options());  // 0: no token reads it
      weight_of_row.scatter_(0, places.flatten(), weights.flatten());
      gy = g.index_select(0, tokens).mul_(weight_of_row.unsqueeze(1));
    }
    if (ctx->needs_input_grad(1)) gweights = rows_of_tokens(y, places).mul_(g.unsqueeze(1)).sum(2);
    return {gy, gweights, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

TakenRows take_rows(const at::Tensor& x, const at::Tensor& tokens) {
  auto taken = TakeRows::apply(x, tokens);
  return {taken[0], taken[1]};
}

at::Tensor add_weighted_rows(const at::Tensor& out, const at::Tensor& y, const at::Tensor& weights,
                             const at::Tensor& tokens) {
  return AddWeightedRows::apply(out, y, weights, optional(tokens));
}

ExpertRows expert_rows(const at::Tensor& chosen, std::int64_t experts, bool one_more) {
  const auto all = at::arange(experts, chosen.options());
  const auto choices = one_more ? at::cat({chosen.flatten(), all}) : chosen.flatten();
  const auto [expert, choice] = at::sort(choices, /*stable=*/true, 0, /*descending=*/false);
  const auto place_of_choice = at::empty_like(choice).scatter_(0, choice, at::arange(choice.numel(), choice.options()));
  return {.tokens = choice.floor_divide(chosen.size(1)).clamp_max_(chosen.size(0) - 1),
          .experts = expert,
          .places = place_of_choice.narrow(0, 0, chosen.numel()).view(chosen.sizes()),
          .ends = at::searchsorted(expert, all, /*out_int32=*/true, /*right=*/true)};
}

at::Tensor spread_rows(const at::Tensor& x, const ExpertRows& rows) {
  return SpreadRows::apply(x, rows.tokens, rows.places);
}

at::Tensor weighted_sums(const at::Tensor& y, const at::Tensor& weights, const ExpertRows& rows) {
  return WeightedSums::apply(y, weights, rows.tokens, rows.places);
}

}  // namespace tessera::nn
