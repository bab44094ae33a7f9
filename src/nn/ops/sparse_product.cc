#include "nn/ops/sparse_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
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

/// The lines' sums of numbers times rows of `from` [n, tokens]: [lines, tokens].
at::Tensor product(const SparsePlaces::Lines& lines, const at::Tensor& numbers, const at::Tensor& from) {
  const auto tokens = from.size(1);
  auto sums = at::zeros({static_cast<std::int64_t>(lines.begin.size()) - 1, tokens}, from.options());
  const auto *x = from.const_data_ptr<float>(), *number = numbers.const_data_ptr<float>();
  auto* y = sums.mutable_data_ptr<float>();
  for_numbers(lines, tokens, [&](std::int64_t line, std::int64_t place, std::int64_t k) {
    kernels::add_scaled(x + place * tokens, number[k], y + line * tokens, tokens);
  });
  return sums;
}

/// F x, and F^T x; x where there is no F.
at::Tensor times(const SparseFactor& f, const at::Tensor& x) {
  return f.places ? product(f.places->rows, f.numbers, x) : x;
}
at::Tensor times_turned(const SparseFactor& f, const at::Tensor& x) {
  return f.places ? product(f.places->columns, f.numbers, x) : x;
}

class SparseProduct : public torch::autograd::Function<SparseProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& numbers,
                            const std::optional<at::Tensor>& bias, const Weight& weight, const SparseDeltaPtr& delta) {
    auto y = weight.product(x);
    const auto scaled = scaled_floats(numbers, *delta);
    for_tokens(x.size(0), [&](std::int64_t begin, std::int64_t count) {
      const auto inputs = times_turned(delta->of_in, turned_tokens(x, begin, count));
      y.narrow(0, begin, count).add_(times(delta->of_out, product(delta->places->rows, scaled, inputs)).t());
    });
    variable_list saved{weight.tensor(), numbers};
    keep_input(ctx, x, saved);
    ctx->save_for_backward(std::move(saved));
    save_weight(ctx, weight);
    ctx->saved_data["delta"] = at::IValue::make_capsule(delta);
    ctx->saved_data["bias"] = bias.has_value();
    return bias ? y.add_(*bias) : y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const auto delta = c10::static_intrusive_pointer_cast<SparseDelta>(ctx->saved_data.at("delta").toCapsule());
    const auto scaled = scaled_floats(saved[1], *delta);
    at::Tensor gx, gn, gb;
    if (ctx->needs_input_grad(0)) gx = saved_weight(ctx, saved[0]).transposed_product(g);
    const auto x = kept_input(ctx, saved, 2);
    if (ctx->needs_input_grad(1)) gn = at::zeros(scaled.sizes(), scaled.options());
    for_tokens(g.size(0), [&](std::int64_t begin, std::int64_t count) {
      const auto of_y = times_turned(delta->of_out, turned_tokens(g, begin, count));
      if (gx.defined())
        gx.narrow(0, begin, count).add_(times(delta->of_in, product(delta->places->columns, scaled, of_y)).t());
      if (!gn.defined()) return;
      const auto inputs = times_turned(delta->of_in, turned_tokens(x, begin, count));
      const auto *from = inputs.const_data_ptr<float>(), *to = of_y.const_data_ptr<float>();
      auto* sums = gn.mutable_data_ptr<float>();
      for_numbers(delta->places->rows, count, [&](std::int64_t row, std::int64_t column, std::int64_t k) {
        sums[k] += kernels::dot(from + column * count, to + row * count, count);
      });
    });
    if (gn.defined()) gn = gn.mul_(delta->scaling).to(saved[1].scalar_type());
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) gb = column_sums(g);
    return {gx, gn, gb, at::Tensor(), at::Tensor()};
  }

 private:
  static at::Tensor scaled_floats(const at::Tensor& numbers, const SparseDelta& delta) {
    const auto wide = numbers.detach().to(at::kFloat).contiguous();
    return delta.scaling == 1 ? wide : wide * delta.scaling;
  }
  template <class F>
  static void for_tokens(std::int64_t tokens, const F& f) {
    for (std::int64_t begin = 0; begin < tokens; begin += kTokensAtOnce)
      f(begin, std::min(kTokensAtOnce, tokens - begin));
  }
};

/// The numbers of a column of F, by rows; of the identity 1 at the place itself.
std::vector<std::pair<std::int64_t, float>> column_of(const SparseFactor& f, std::int64_t column) {
  if (!f.places) return {{column, 1.0F}};
  std::vector<std::pair<std::int64_t, float>> out;
  const auto& lines = f.places->columns;
  const auto* number = f.numbers.const_data_ptr<float>();
  const auto c = static_cast<std::size_t>(column);
  for (auto k = static_cast<std::size_t>(lines.begin[c]); k < static_cast<std::size_t>(lines.begin[c + 1]); ++k)
    out.emplace_back(lines.other[k], number[lines.number[k]]);
  return out;
}

}  // namespace

SparsePlaces::SparsePlaces(at::Tensor places, std::int64_t outputs, std::int64_t inputs)
    : flat(std::move(places)), out(outputs), in(inputs) {
  const auto* at = flat.const_data_ptr<std::int64_t>();
  const auto count = flat.numel();
  rows = lines_of(out, count, [&](std::int64_t k) { return std::pair{at[k] / in, at[k] % in}; });
  columns = lines_of(in, count, [&](std::int64_t k) { return std::pair{at[k] % in, at[k] / in}; });
}

at::Tensor sparse_product(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, const at::Tensor& numbers,
                          const SparseDeltaPtr& delta) {
  return over_rows(
      x, [&](const at::Tensor& rows) { return SparseProduct::apply(rows, numbers, optional(bias), weight, delta); });
}

at::Tensor sparse_matrix(const at::Tensor& numbers, const SparseDelta& delta) {
  const auto& places = *delta.places;
  const auto out = delta.of_out.places ? delta.of_out.places->out : places.out;
  const auto in = delta.of_in.places ? delta.of_in.places->out : places.in;
  auto values = numbers.to(at::kFloat) * delta.scaling;
  auto flat = places.flat;
  if (delta.of_out.places || delta.of_in.places) {  // a number is spread over the product of two columns
    std::vector<std::int64_t> spread, number;
    std::vector<float> factors;
    const auto* at = places.flat.const_data_ptr<std::int64_t>();
    for (std::int64_t k = 0; k < places.flat.numel(); ++k) {
      const auto columns = column_of(delta.of_in, at[k] % places.in);
      for (const auto& [row, a] : column_of(delta.of_out, at[k] / places.in)) {
        for (const auto& [column, b] : columns) {
          spread.push_back(row * in + column);
          number.push_back(k);
          factors.push_back(a * b);
        }
      }
    }
    flat = at::tensor(spread, at::kLong);
    values = values.index_select(0, at::tensor(number, at::kLong).to(values.device())) *
             at::tensor(factors, at::kFloat).to(values.device());
  }
  return at::zeros({out * in}, values.options()).index_put({flat}, values, /*accumulate=*/true).view({out, in});
}

}  // namespace tessera::nn
