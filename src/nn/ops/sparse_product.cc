#include "nn/ops/sparse_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "nn/kernels/row_kernels.h"
#include "nn/kernels/row_sums.h"
#include "nn/layers/saved_weight.h"
#include "nn/ops/column_sums.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/recompute.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kTokensAtOnce = 128;

/// Sorted by line; where(k): the line of a number and its place there.
template <class Where>
SparsePlaces::Lines lines_of(std::int64_t lines, std::int64_t count, const Where& where) {
  SparsePlaces::Lines out;
  out.begin.assign(static_cast<std::size_t>(lines) + 1, 0);
  out.other.resize(static_cast<std::size_t>(count));
  out.number.resize(static_cast<std::size_t>(count));
  for (std::int64_t k = 0; k < count; ++k) ++out.begin[static_cast<std::size_t>(where(k).first) + 1];
  for (std::size_t i = 1; i < out.begin.size(); ++i) out.begin[i] += out.begin[i - 1];
  auto next = out.begin;
  for (std::int64_t k = 0; k < count; ++k) {
    const auto [line, place] = where(k);
    const auto at = static_cast<std::size_t>(next[static_cast<std::size_t>(line)]++);
    out.other[at] = static_cast<std::int32_t>(place);
    out.number[at] = static_cast<std::int32_t>(k);
  }
  return out;
}

/// f(line, place, number) for each number, the lines divided among threads.
template <class F>
void for_numbers(const SparsePlaces::Lines& lines, std::int64_t tokens, const F& f) {
  const auto count = static_cast<std::int64_t>(lines.begin.size()) - 1;
  const auto each = static_cast<std::int64_t>(lines.other.size()) / std::max<std::int64_t>(1, count) + 1;
  for_rows(count, each * tokens, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      for (auto k = lines.begin[static_cast<std::size_t>(i)]; k < lines.begin[static_cast<std::size_t>(i) + 1]; ++k)
        f(i, lines.other[static_cast<std::size_t>(k)], lines.number[static_cast<std::size_t>(k)]);
  });
}

/// Some tokens of rows [N, n], as [n, tokens] in float32.
at::Tensor turned_tokens(const at::Tensor& rows, std::int64_t begin, std::int64_t count) {
  const auto out = at::empty({rows.size(1), count}, rows.options().dtype(at::kFloat));
  return out.copy_(rows.narrow(0, begin, count).t());
}

/// Adds to some tokens of `to` what the numbers make of `from`, [n, tokens].
void add_numbers(const SparsePlaces::Lines& lines, const at::Tensor& numbers, const at::Tensor& from,
                 const at::Tensor& to) {
  const auto tokens = from.size(1);
  const auto sums = at::zeros({static_cast<std::int64_t>(lines.begin.size()) - 1, tokens}, from.options());
  const auto *x = from.const_data_ptr<float>(), *number = numbers.const_data_ptr<float>();
  auto* y = sums.mutable_data_ptr<float>();
  for_numbers(lines, tokens, [&](std::int64_t line, std::int64_t place, std::int64_t k) {
    kernels::add_scaled(x + place * tokens, number[k], y + line * tokens, tokens);
  });
  to.add_(sums.t());
}

class SparseProduct : public torch::autograd::Function<SparseProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& numbers,
                            const std::optional<at::Tensor>& bias, const Weight& weight,
                            const SparsePlacesPtr& places) {
    auto y = weight.product(x);
    const auto wide = numbers.to(at::kFloat).contiguous();
    for_tokens(x.size(0), [&](std::int64_t begin, std::int64_t count) {
      add_numbers(places->rows, wide, turned_tokens(x, begin, count), y.narrow(0, begin, count));
    });
    variable_list saved{weight.tensor(), numbers};
    keep_input(ctx, x, saved);
    ctx->save_for_backward(std::move(saved));
    save_weight(ctx, weight);
    ctx->saved_data["places"] = at::IValue::make_capsule(places);
    ctx->saved_data["bias"] = bias.has_value();
    return bias ? y.add_(*bias) : y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const auto places = c10::static_intrusive_pointer_cast<SparsePlaces>(ctx->saved_data.at("places").toCapsule());
    const auto wide = saved[1].to(at::kFloat).contiguous();
    at::Tensor gx, gn, gb;
    if (ctx->needs_input_grad(0)) gx = saved_weight(ctx, saved[0]).transposed_product(g);
    const auto x = kept_input(ctx, saved, 2);
    if (ctx->needs_input_grad(1)) gn = at::zeros(wide.sizes(), wide.options());
    for_tokens(g.size(0), [&](std::int64_t begin, std::int64_t count) {
      const auto of_y = turned_tokens(g, begin, count);
      if (gx.defined()) add_numbers(places->columns, wide, of_y, gx.narrow(0, begin, count));
      if (!gn.defined()) return;
      const auto inputs = turned_tokens(x, begin, count);
      const auto *from = inputs.const_data_ptr<float>(), *to = of_y.const_data_ptr<float>();
      auto* sums = gn.mutable_data_ptr<float>();
      for_numbers(places->rows, count, [&](std::int64_t row, std::int64_t column, std::int64_t k) {
        sums[k] += kernels::dot(from + column * count, to + row * count, count);
      });
    });
    if (gn.defined()) gn = gn.to(saved[1].scalar_type());
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) gb = column_sums(g);
    return {gx, gn, gb, at::Tensor(), at::Tensor()};
  }

 private:
  template <class F>
  static void for_tokens(std::int64_t tokens, const F& f) {
    for (std::int64_t begin = 0; begin < tokens; begin += kTokensAtOnce)
      f(begin, std::min(kTokensAtOnce, tokens - begin));
  }
};

}  // namespace

SparsePlaces::SparsePlaces(at::Tensor places, std::int64_t out, std::int64_t inputs)
    : flat(std::move(places)), in(inputs) {
  const auto* at = flat.const_data_ptr<std::int64_t>();
  const auto count = flat.numel();
  rows = lines_of(out, count, [&](std::int64_t k) { return std::pair{at[k] / in, at[k] % in}; });
  columns = lines_of(in, count, [&](std::int64_t k) { return std::pair{at[k] % in, at[k] / in}; });
}

at::Tensor sparse_product(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, const at::Tensor& numbers,
                          const SparsePlacesPtr& places) {
  return over_rows(
      x, [&](const at::Tensor& rows) { return SparseProduct::apply(rows, numbers, optional(bias), weight, places); });
}

at::Tensor sparse_matrix(const at::Tensor& numbers, const SparsePlaces& places) {
  const auto out = static_cast<std::int64_t>(places.rows.begin.size()) - 1;
  return at::zeros({out * places.in}, numbers.options().dtype(at::kFloat))
      .index_put({places.flat}, numbers.to(at::kFloat), /*accumulate=*/true)
      .view({out, places.in});
}

}  // namespace tessera::nn
