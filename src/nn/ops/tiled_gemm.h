#pragma once
// Products in float32 whose second factor is made tile by tile: unpacked from codes, or widened from 16 bits.
#include <ATen/core/Tensor.h>

#include <functional>

#include "tessera/tensor/codec.h"

namespace tessera::nn {

/// A part of the second factor [K, N] in float32; contiguous, or the transpose of a tensor that is.
using TileSource = std::function<at::Tensor(const tensor::MatrixTile&)>;

/// What is added to a product on the way, [M, R] times [R, N] of any floating dtype; undefined: nothing.
struct Addend {
  at::Tensor u, v;
};

/// out = alpha * (a b + u v), or out += that, rounded once to out's dtype; a: [M, K] of any floating dtype, out: [M, N]
/// with contiguous rows. A tile stays in the cache. It is wide: what it is made of then lies together in memory, and a,
/// which the library packs anew for each tile, is packed seldom. It is not as deep as the inner dimension: the cache
/// would then hold too few columns.
void gemm_by_tiles(const at::Tensor& out, const at::Tensor& a, const TileSource& b, const Addend& addend,
                   double alpha = 1.0, bool add = false);

}  // namespace tessera::nn
