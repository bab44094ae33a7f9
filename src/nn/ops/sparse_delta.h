#pragma once
// Matrices that are made of a sparse one (nn/ops/panel_product.h): it alone, or transformed on both sides.
#include <memory>
#include <vector>

#include "nn/ops/panel_product.h"

namespace tessera::nn {

namespace kernels {
class PanelFourier;
}

/// Where the numbers of a matrix [out, in] stand.
struct SparsePlaces : torch::CustomClassHolder {
  /// The numbers of each row (or column): number[k] at other[k], k from begin[i] to begin[i + 1].
  struct Lines {
    std::vector<std::int64_t> begin;
    std::vector<std::int32_t> other, number;
  };
  at::Tensor flat;  // row * in + column, int64 [n]
  std::int64_t out, in;
  Lines rows, columns;

  SparsePlaces(at::Tensor flat, std::int64_t out, std::int64_t in);
};
using SparsePlacesPtr = c10::intrusive_ptr<SparsePlaces>;

/// A matrix with fixed numbers, or (inverse) Fourier transforms, which are not scaled: of pairs of tokens as complex
/// signals, so that the real numbers of a delta must stand for a real matrix.
struct FixedFactor {
  SparsePlacesPtr places = {};
  at::Tensor numbers = {};  // [n], float32
  std::shared_ptr<const kernels::PanelFourier> fourier = {};
};

/// scaling * A M B^T, M [Q, P] with numbers at `places`, A [out, Q] and B [in, P]; those that are left out are the
/// identity. The n numbers may stand at several times n places: then each stands at place k, k + n, and so on.
struct SparseDelta final : PanelDelta {
  SparsePlacesPtr places;
  double scaling;
  FixedFactor of_out, of_in;
  explicit SparseDelta(SparsePlacesPtr places, double scaling = 1, FixedFactor of_out = {}, FixedFactor of_in = {})
      : places(std::move(places)), scaling(scaling), of_out(std::move(of_out)), of_in(std::move(of_in)) {}

  at::Tensor prepared(const at::Tensor& numbers) const override;
  at::Tensor from_input(const at::Tensor& x, PanelPool& pool) const override;
  at::Tensor output(const at::Tensor& prepared, const at::Tensor& inputs, PanelPool& pool) const override;
  at::Tensor from_gradient(const at::Tensor& g, PanelPool& pool) const override;
  at::Tensor input_gradient(const at::Tensor& prepared, const at::Tensor& gradients, PanelPool& pool) const override;
  at::Tensor no_gradient(const at::Tensor& numbers) const override;
  void add_gradient(const at::Tensor& inputs, const at::Tensor& gradients, const at::Tensor& sums) const override;
  at::Tensor gradient(const at::Tensor& sums) const override;
};
using SparseDeltaPtr = c10::intrusive_ptr<SparseDelta>;

/// D, [out, in], float32; differentiable. Not of Fourier transforms.
at::Tensor sparse_matrix(const at::Tensor& numbers, const SparseDelta& delta);

}  // namespace tessera::nn
