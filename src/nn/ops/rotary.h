#pragma once
// Rotary position embedding (Su et al. 2021).
#include <ATen/core/Tensor.h>

#include <utility>

#include "base/layer_kinds.h"

namespace tessera::nn {

struct RotaryTable {
  at::Tensor cos, sin;   // [positions, R / 2] float32
  at::Tensor positions;  // [T] int64, rows of the table
  RotaryPairs pairs = RotaryPairs::kHalves;
};

/// Turns the first R elements of every head; the others are copied. q, k: [T, ..., D] with last stride 1; the results
/// are contiguous. Nothing is kept for backward but the table.
std::pair<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const RotaryTable& table);

}  // namespace tessera::nn
