#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::peft {

/// U - U' of the upper triangles by rows; [blocks, n (n - 1) / 2] -> [blocks, n, n].
at::Tensor skew_symmetric(const at::Tensor& triangles, std::int64_t n);

/// The first terms of (I + S)(I - S)^-1, [blocks, n, n], differentiable: I + 2 S + 2 S^2 + ..., the last one once.
at::Tensor cayley_neumann(const at::Tensor& skew, std::int64_t terms);

/// The rotations (I - S)(I + S)^-1 of skew-symmetric S [blocks, n, n], differentiable; computed in float32, in S's
/// dtype.
at::Tensor cayley(const at::Tensor& skew);

}  // namespace tessera::peft
