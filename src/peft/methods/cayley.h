#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::peft {

/// The rotations (I - S)(I + S)^-1 of skew-symmetric S [blocks, n, n], differentiable; computed in float32, in S's
/// dtype.
at::Tensor cayley(const at::Tensor& skew);

}  // namespace tessera::peft
