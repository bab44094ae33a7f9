#include "nn/ops/sparse_delta.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "nn/kernels/panel_fourier.h"
#include "nn/kernels/token_panels.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

using kernels::kPanelTokens;

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

kernels::SparseLines as_lines(const SparsePlaces::Lines& lines) {
  return {static_cast<std::int64_t>(lines.begin.size()) - 1, lines.begin.data(), lines.other.data(),
          lines.number.data()};
}

/// The lines' sums of numbers times rows of x.
at::Tensor product(const SparsePlaces::Lines& lines, const at::Tensor& numbers, const at::Tensor& x, PanelPool& pool) {
  const auto all = as_lines(lines);
  auto y = pool.panel(all.lines);
  kernels::sparse_lines(all, 0, all.lines, numbers.const_data_ptr<float>(), x.const_data_ptr<float>(),
                        y.mutable_data_ptr<float>());
  return y;
}

at::Tensor transformed(const kernels::PanelFourier& fourier, const at::Tensor& x, bool inverse, PanelPool& pool) {
  auto y = pool.panel(x.size(0));
  const auto scratch = pool.panel(x.size(0));
  fourier.transform({x.const_data_ptr<float>()}, {y.mutable_data_ptr<float>()}, scratch.mutable_data_ptr<float>(),
                    inverse);
  return y;
}

/// F x, and F^T x; x where there is no F.
at::Tensor times(const FixedFactor& f, const at::Tensor& x, PanelPool& pool) {
  if (f.fourier) return transformed(*f.fourier, x, true, pool);
  return f.places ? product(f.places->rows, f.numbers, x, pool) : x;
}
at::Tensor times_turned(const FixedFactor& f, const at::Tensor& x, PanelPool& pool) {
  if (f.fourier) return transformed(*f.fourier, x, false, pool);
  return f.places ? product(f.places->columns, f.numbers, x, pool) : x;
}

/// The numbers of a column of F, by rows; of the identity 1 at the place itself.
std::vector<std::pair<std::int64_t, float>> column_of(const FixedFactor& f, std::int64_t column) {
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

at::Tensor SparseDelta::prepared(const at::Tensor& numbers) const {
  auto wide = numbers.to(at::kFloat).contiguous();
  if (places->flat.numel() > numbers.numel()) wide = wide.repeat({places->flat.numel() / numbers.numel()});
  return scaling == 1 ? wide : wide * scaling;
}

at::Tensor SparseDelta::from_input(const at::Tensor& x, PanelPool& pool) const {
  return times_turned(of_in, x, pool);
}

at::Tensor SparseDelta::output(const at::Tensor& prepared, const at::Tensor& inputs, PanelPool& pool) const {
  return times(of_out, product(places->rows, prepared, inputs, pool), pool);
}

at::Tensor SparseDelta::from_gradient(const at::Tensor& g, PanelPool& pool) const {
  return times_turned(of_out, g, pool);
}

at::Tensor SparseDelta::input_gradient(const at::Tensor& prepared, const at::Tensor& gradients, PanelPool& pool) const {
  return times(of_in, product(places->columns, prepared, gradients, pool), pool);
}

at::Tensor SparseDelta::no_gradient(const at::Tensor& numbers) const {
  return at::zeros({places->flat.numel() / numbers.numel(), numbers.numel()}, numbers.options().dtype(at::kFloat));
}

void SparseDelta::add_gradient(const at::Tensor& inputs, const at::Tensor& gradients, const at::Tensor& sums) const {
  const auto lines = as_lines(places->rows);
  auto* out = sums.mutable_data_ptr<float>();
  for_rows(sums.numel(), kPanelTokens, [&](std::int64_t k, std::int64_t end) {
    kernels::sparse_dots(lines, k, end, inputs.const_data_ptr<float>(), gradients.const_data_ptr<float>(), out);
  });
}

at::Tensor SparseDelta::gradient(const at::Tensor& sums) const {
  return (sums.size(0) == 1 ? sums[0] : sums.sum(0)).mul_(scaling);
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
