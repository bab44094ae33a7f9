#include "nn/ops/circulant_delta.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/fft_fft.h>
#include <ATen/ops/fft_ifft.h>
#include <ATen/ops/real.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

using kernels::kPanelTokens;

}  // namespace

// Of the blocks' first rows, scaled and by a transform's length, [b, out / b, in / b] of pairs.
at::Tensor CirculantDelta::prepared(const at::Tensor& numbers) const {
  const auto factor = scaling_ / static_cast<double>(fourier_.length());
  const auto spectra = at::fft_fft(numbers.to(at::kFloat) * factor);
  return at::view_as_real(spectra.permute({2, 0, 1}).contiguous());
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

void CirculantDelta::add_gradient(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& gradients,
                                  const at::Tensor& sums) const {
  const auto rows = sums.size(1), columns = sums.size(2);
  auto* out = sums.mutable_data_ptr<float>();
  const auto work = rows * columns * static_cast<std::int64_t>(inputs.size()) * kPanelTokens;
  for_rows(sums.size(0), work, [&](std::int64_t first, std::int64_t last) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      kernels::spectral_gradients(rows, columns, first, last, inputs[i].const_data_ptr<float>(),
                                  gradients[i].const_data_ptr<float>(), out);
  });
}

// Two tokens' part of the sums is a real sequence's transform, and i times another's, which is none of the gradient.
at::Tensor CirculantDelta::gradient(const at::Tensor& sums) const {
  return at::real(at::fft_ifft(at::view_as_complex(sums).permute({1, 2, 0}))) * scaling_;
}

}  // namespace tessera::nn
