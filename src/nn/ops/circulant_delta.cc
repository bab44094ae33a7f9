#include "nn/ops/circulant_delta.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

using kernels::kPanelTokens;

/// Real rows are transformed in the first half of a panel, so many at a time.
constexpr std::int64_t kRealRows = kPanelTokens / 2;

/// f(first row, rows, panel, transformed, scratch) for some of them; panels of `length` rows.
template <class F>
void for_real_rows(std::int64_t rows, std::int64_t length, const F& f) {
  at::parallel_for(0, (rows + kRealRows - 1) / kRealRows, 1, [&](std::int64_t first, std::int64_t last) {
    const auto size = static_cast<std::size_t>(length * kPanelTokens);
    std::vector<float> panel(size), transformed(size), scratch(size);
    for (auto i = first * kRealRows; i < last * kRealRows; i += kRealRows)
      f(i, std::min(kRealRows, rows - i), panel.data(), transformed.data(), scratch.data());
  });
}

}  // namespace

// Of the blocks' first rows, scaled and by a transform's length, [b, out / b, in / b] of pairs.
at::Tensor CirculantDelta::prepared(const at::Tensor& numbers) const {
  const auto size = fourier_.length(), rows = numbers.size(0) * numbers.size(1);
  const auto scaled = (numbers.to(at::kFloat) * (scaling_ / static_cast<double>(size))).contiguous();
  auto out = at::empty({size, numbers.size(0), numbers.size(1), 2}, scaled.options());
  const auto* from = scaled.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  for_real_rows(
      rows, size, [&](std::int64_t first, std::int64_t count, float* panel, float* transformed, float* scratch) {
        kernels::turn_to_panel(kernels::TokenRows<const float>{from + first * size, count, size, size}, panel);
        fourier_.transform({panel}, {transformed}, scratch, /*inverse=*/false);
        for (std::int64_t f = 0; f < size; ++f)
          for (std::int64_t i = 0; i < 2 * count; ++i)
            to[2 * (f * rows + first) + i] = transformed[f * kPanelTokens + i / 2 + i % 2 * kRealRows];
      });
  return out;
}

/// Of the blocks of tokens: [b, blocks, 64] as a panel.
at::Tensor CirculantDelta::spectra_of(const at::Tensor& x, PanelPool& pool) const {
  const auto size = fourier_.length(), blocks = x.size(0) / size;
  auto out = pool.panel(x.size(0));
  const auto scratch = pool.panel(size);
  for (std::int64_t i = 0; i < blocks; ++i)
    fourier_.transform({x.const_data_ptr<float>() + i * size * kPanelTokens},
                       {out.mutable_data_ptr<float>() + i * kPanelTokens, blocks}, scratch.mutable_data_ptr<float>(),
                       /*inverse=*/false);
  return out;
}

/// Of a correlation, or turned of a convolution.
at::Tensor CirculantDelta::product(const at::Tensor& prepared, bool turned, const at::Tensor& spectra,
                                   PanelPool& pool) const {
  const auto size = fourier_.length(), blocks = prepared.size(turned ? 2 : 1);
  const auto results = pool.panel(size * blocks);
  kernels::spectral_products(
      {prepared.const_data_ptr<float>(), prepared.size(1), prepared.size(2), turned, /*conjugate=*/!turned}, 0, size,
      spectra.const_data_ptr<float>(), results.mutable_data_ptr<float>());
  auto out = pool.panel(blocks * size);
  const auto scratch = pool.panel(size);
  for (std::int64_t i = 0; i < blocks; ++i)
    fourier_.transform({results.const_data_ptr<float>() + i * kPanelTokens, blocks},
                       {out.mutable_data_ptr<float>() + i * size * kPanelTokens}, scratch.mutable_data_ptr<float>(),
                       /*inverse=*/true);
  return out;
}

at::Tensor CirculantDelta::from_input(const at::Tensor& x, PanelPool& pool) const {
  return spectra_of(x, pool);
}

at::Tensor CirculantDelta::output(const at::Tensor& prepared, const at::Tensor& inputs, PanelPool& pool) const {
  return product(prepared, /*turned=*/false, inputs, pool);
}

at::Tensor CirculantDelta::from_gradient(const at::Tensor& g, PanelPool& pool) const {
  return spectra_of(g, pool);
}

at::Tensor CirculantDelta::input_gradient(const at::Tensor& prepared, const at::Tensor& gradients,
                                          PanelPool& pool) const {
  return product(prepared, /*turned=*/true, gradients, pool);
}

at::Tensor CirculantDelta::no_gradient(const at::Tensor& numbers) const {
  return at::zeros({numbers.size(2), numbers.size(0), numbers.size(1), 2}, numbers.options().dtype(at::kFloat));
}

void CirculantDelta::add_gradient(const at::Tensor& inputs, const at::Tensor& gradients, const at::Tensor& sums) const {
  const auto rows = sums.size(1), columns = sums.size(2);
  auto* out = sums.mutable_data_ptr<float>();
  const auto work = rows * columns * kPanelTokens;
  for_rows(sums.size(0), work, [&](std::int64_t first, std::int64_t last) {
    kernels::spectral_gradients(rows, columns, first, last, inputs.const_data_ptr<float>(),
                                gradients.const_data_ptr<float>(), out);
  });
}

// Two tokens' part of the sums is a real sequence's transform, and i times another's, which is none of the gradient.
at::Tensor CirculantDelta::gradient(const at::Tensor& sums) const {
  const auto size = fourier_.length(), rows = sums.size(1) * sums.size(2);
  auto out = at::zeros({sums.size(1), sums.size(2), size}, sums.options());
  const auto* from = sums.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  for_real_rows(rows, size, [&](std::int64_t first, std::int64_t count, float* spectra, float* panel, float* scratch) {
    for (std::int64_t f = 0; f < size; ++f)
      for (std::int64_t i = 0; i < 2 * count; ++i)
        spectra[f * kPanelTokens + i / 2 + i % 2 * kRealRows] = from[2 * (f * rows + first) + i];
    fourier_.transform({spectra}, {panel}, scratch, /*inverse=*/true);
    kernels::add_panel(panel, kernels::TokenRows<float>{to + first * size, count, size, size});
  });
  return out.mul_(scaling_ / static_cast<double>(size));
}

}  // namespace tessera::nn
