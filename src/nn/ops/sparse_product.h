#pragma once
// The product of a layer whose weight gains a sparse matrix: y gains what each of its numbers adds, for some tokens at
// a time, and no matrix is made.
#include <torch/custom_class.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/nn/weight.h"

namespace tessera::nn {

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

/// A matrix with fixed numbers.
struct SparseFactor {
  SparsePlacesPtr places = {};
  at::Tensor numbers = {};  // [n], float32
};

/// scaling * A M B^T, M [Q, P] with numbers at `places`, A [out, Q] and B [in, P]; those that are left out are the
/// identity.
struct SparseDelta : torch::CustomClassHolder {
  SparsePlacesPtr places;
  double scaling;
  SparseFactor of_out, of_in;
  explicit SparseDelta(SparsePlacesPtr places, double scaling = 1, SparseFactor of_out = {}, SparseFactor of_in = {})
      : places(std::move(places)), scaling(scaling), of_out(std::move(of_out)), of_in(std::move(of_in)) {}
};
using SparseDeltaPtr = c10::intrusive_ptr<SparseDelta>;

/// x W^T + bias + x D^T as one node on the CPU; x: [..., in], numbers: [n], W frozen. Keeps x alone. Sums in float32.
at::Tensor sparse_product(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, const at::Tensor& numbers,
                          const SparseDeltaPtr& delta);

/// D, [out, in], float32; differentiable.
at::Tensor sparse_matrix(const at::Tensor& numbers, const SparseDelta& delta);

}  // namespace tessera::nn
