#pragma once
// Small matrix products of bfloat16 (as its bits) with sums in float32, for operands that stay in the cache, by AMX's
// tiles: 16 rows, 16 pairs along the inner dimension, 16 columns. Operands are laid out as in bf16_dot.h.
#include "nn/kernels/bf16_dot.h"

namespace tessera::nn::kernels {

/// This processor has the instructions, and the kernel lets this process use them; without them nothing else here may
/// be called.
bool has_bf16_tiles();

/// A large product of fewer rows is a library's where there are tiles.
constexpr std::int64_t kFewestTileRows = 32;

/// While it lives this thread may multiply tiles; nothing else that does (a library) may be called.
class TileScope {
 public:
  TileScope();
  ~TileScope();
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

/// c [rows, columns] = a b, or c += a b, by whole tiles: rows, columns and pairs up to a multiple of 16 are read and
/// written. Pairs of a row of a are beside each other (a.pair is 2).
void multiply_tiles(const DotRows& a, const VnniMatrix& b, const SumMatrix& c, const DotSize& size, bool add);

}  // namespace tessera::nn::kernels
