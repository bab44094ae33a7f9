#pragma once
// Matrices of circulant blocks (nn/ops/panel_product.h): each row of a block is the one before it, turned by one place.
// x C^T is a circular correlation, by Fourier transforms of each token's blocks.
#include "nn/kernels/panel_fourier.h"
#include "nn/ops/panel_product.h"

namespace tessera::nn {

/// scaling * C, by the blocks' first rows [out / b, in / b, b].
class CirculantDelta final : public PanelDelta {
 public:
  /// The length of a block that PanelFourier takes.
  explicit CirculantDelta(std::int64_t block, double scaling) : fourier_(block), scaling_(scaling) {}

  at::Tensor prepared(const at::Tensor& numbers) const override;
  at::Tensor from_input(const at::Tensor& x, PanelPool& pool) const override;
  at::Tensor output(const at::Tensor& prepared, const at::Tensor& inputs, PanelPool& pool) const override;
  at::Tensor from_gradient(const at::Tensor& g, PanelPool& pool) const override;
  at::Tensor input_gradient(const at::Tensor& prepared, const at::Tensor& gradients, PanelPool& pool) const override;
  at::Tensor no_gradient(const at::Tensor& numbers) const override;
  void add_gradient(const at::Tensor& inputs, const at::Tensor& gradients, const at::Tensor& sums) const override;
  at::Tensor gradient(const at::Tensor& sums) const override;

 private:
  at::Tensor spectra_of(const at::Tensor& x, PanelPool& pool) const;
  at::Tensor product(const at::Tensor& prepared, bool turned, const at::Tensor& spectra, PanelPool& pool) const;

  kernels::PanelFourier fourier_;
  double scaling_;
};

}  // namespace tessera::nn
