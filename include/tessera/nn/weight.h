#pragma once
// The weight of a linear layer as its products see it: a dense matrix, or a packed one (tessera/tensor/codec.h), which
// is dequantised on the way into a product. Copies are cheap and refer to the same memory.
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "tessera/tensor/codec.h"

namespace tessera::nn {

/// How a layer keeps its weight: PyTorch's [out, in], or the [in, out] of GPT-2's Conv1D (fan_in_fan_out in PEFT).
enum class WeightLayout { kOutIn, kInOut };

/// What product() of a packed weight is: that with its values, or inference's, where the codec has one of its own.
enum class PackedProduct { kOfValues, kOfInference };

/// W [out, in]. Nothing here is recorded by autograd: whoever makes a node calls product() in its forward,
/// transposed_product() and gradient() in its backward. N: rows of x and g.
class Weight {
 public:
  /// [out, in]; a transposed view is read in place.
  Weight(at::Tensor dense) : tensor_(std::move(dense)) {}  // NOLINT: a dense matrix is a weight
  /// [out, in], too. compute: products are made in this dtype, whatever the dtype of their inputs and results; unset:
  /// in that of the inputs.
  explicit Weight(std::shared_ptr<const tensor::PackedMatrix> packed, PackedProduct product = PackedProduct::kOfValues,
                  std::optional<at::ScalarType> compute = {});

  bool packed() const { return packed_ != nullptr; }
  /// The dense matrix; of a packed one the codes, which stand for it where autograd wants a tensor.
  const at::Tensor& tensor() const { return tensor_; }
  std::int64_t out_features() const;
  /// The same, whose products are those with its values, in the dtype of their inputs.
  Weight of_values() const { return packed() ? Weight(packed_) : *this; }
  /// The dtype of products with inputs of this one.
  at::ScalarType compute_dtype(at::ScalarType of_inputs) const;
  /// Only a dense weight can train.
  bool trains() const { return !packed() && tensor_.requires_grad(); }

  /// x W^T [N, out], and + u v where u is defined ([N, R], [R, out], of an adapter's dtype). x: [N, in], of the dense
  /// weight's dtype; a packed one takes any floating dtype. The result has x's dtype.
  at::Tensor product(const at::Tensor& x, const at::Tensor& u = {}, const at::Tensor& v = {}) const;
  /// g W [N, in], and + u v. g: [N, out].
  at::Tensor transposed_product(const at::Tensor& g, const at::Tensor& u = {}, const at::Tensor& v = {}) const;
  /// g^T x [out, in], of a dense weight.
  at::Tensor gradient(const at::Tensor& g, const at::Tensor& x) const;
  /// W [out, in] as a dense matrix: a packed one unpacked to this dtype, on the device of its codes; a dense one as it
  /// is.
  at::Tensor dequantise(at::ScalarType dtype) const;
  /// Rows [begin, begin + count) of it, on the CPU; of a dense one a view.
  at::Tensor dequantised_rows(std::int64_t begin, std::int64_t count, at::ScalarType dtype) const;

 private:
  at::Tensor tensor_;
  std::shared_ptr<const tensor::PackedMatrix> packed_;
  PackedProduct product_ = PackedProduct::kOfValues;
  std::optional<at::ScalarType> compute_;
};

}  // namespace tessera::nn
