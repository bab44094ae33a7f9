#pragma once
// Products of float32 with a packed second factor, and of 16-bit dtypes that a processor cannot multiply.
#include <ATen/core/Tensor.h>

#include "nn/ops/gemm.h"
#include "nn/ops/widened_gemm.h"

namespace tessera::nn {

/// a b + u v in float32, rounded once; a: [M, K] of float32, or of a dtype that is_widened() to it, to which b's values
/// are rounded. b is unpacked tile by tile, each wide enough that its codes lie together in memory and deep enough that
/// sums are seldom added to; a library that packs its factors would else pack a anew for every few columns.
at::Tensor gemm_by_tiles(const at::Tensor& a, const PackedFactor& b, const Addend& addend);

}  // namespace tessera::nn
