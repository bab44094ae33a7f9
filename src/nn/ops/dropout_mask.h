#pragma once
// One draw of dropout masks for the rows of a tensor. The mask of a row depends on the draw and on the row's key, so it
// is the same on any rank and in any batch (tensor::PassScope).
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/kernels/row_kernels.h"

namespace tessera::nn {

class DropoutMask {
 public:
  /// Drops nothing, and draws nothing.
  DropoutMask() = default;
  /// For a tensor of so many rows. Draws from this thread's stream unless p is 0.
  DropoutMask(double p, std::int64_t rows);
  /// For a tensor on another device than the CPU whose rows have keys of their own: int32 [rows, 2], beside it.
  DropoutMask(double p, at::Tensor keys);

  bool drops() const { return mask_.threshold != 0 || mask_.scale != 1.0f; }
  float scale() const { return mask_.scale; }
  kernels::Mask row(std::int64_t row) const;
  /// With the draw's own key: that of a row is this, xor the row's.
  kernels::Mask draw() const { return mask_; }
  /// [rows, 2] int32, on `like`'s device: what is mixed into the draw's key.
  at::Tensor row_keys(std::int64_t rows, const at::Tensor& like) const;
  /// row_keys() of every draw for `count` rows whose keys are `rows`, int64 (random_state().rows), or, where these are
  /// undefined, their numbers.
  static at::Tensor keys_of(const at::Tensor& rows, std::int64_t count, const at::Tensor& like);

  /// Keeps it from forward to backward.
  void save(torch::autograd::AutogradContext* context) const;
  static DropoutMask load(torch::autograd::AutogradContext* context);

 private:
  kernels::Mask mask_;
  at::Tensor rows_;      // keys, undefined: row numbers
  at::Tensor own_keys_;  // of the second constructor
};

/// Where a head's part of a query's mask begins: index offset + j for key j, whatever the number of keys.
inline std::uint32_t head_offset(std::int64_t head) {
  return static_cast<std::uint32_t>(head) << 20;
}

}  // namespace tessera::nn
