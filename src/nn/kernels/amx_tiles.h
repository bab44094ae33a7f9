#pragma once
// Tiles of AMX: TDPBF16PS adds to 16 x 16 sums of float32 the product of 16 rows of 16 pairs of bfloat16 with 16 pairs
// of 16 columns. In a TileScope (bf16_tiles.h).
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#define TESSERA_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))
#define TESSERA_AMX_INLINE TESSERA_AMX inline __attribute__((always_inline))

namespace tessera::nn::kernels {

constexpr std::int64_t kTile = 16;  // rows of a tile, pairs, columns
constexpr std::int64_t kTileWords = kTile * kTile;

/// g++'s intrinsics do not say which memory they read.
inline void written(const void* memory) {
  __asm__ volatile("" ::"r"(memory) : "memory");
}

/// Rows of a first factor: `row` words apart, the next 16 rows from `below` on, the next 16 pairs `step` words on.
struct TileRows {
  const std::uint32_t* at = nullptr;
  std::int64_t row = 0, below = 0, step = 0;
  std::int64_t pairs = 0;  // a multiple of 16
};

/// Up to 2 x 2 tiles of sums: their rows, the next 16 columns, the next 16 rows; in floats.
struct TileSums {
  float* at;
  std::int64_t row, right, below;
};

/// sums (+)= a b, and a's further pairs. b: pairs b_row words apart.
struct TileProduct {
  TileRows a, more;
  const std::uint32_t* b;
  std::int64_t b_row;
  TileSums sums;
  bool add;
};

/// Whether tiles of b are read again soon, or leave the first cache to those of a.
enum class TileReads { kAgain, kOnce };

struct NothingBetween {
  void operator()() const {}
};

/// Sums are tiles 0 to 3, rows 4 and 5, columns 6 and 7. between() is called for every 16 pairs: the processor does it
/// while it multiplies.
template <TileReads Reads, int Rows, int Columns, class Between>
TESSERA_AMX_INLINE const std::uint32_t* add_tiles(const TileRows& rows, const std::uint32_t* b, std::int64_t b_row,
                                                  Between& between) {
  const std::int64_t a_stride = rows.row * 4, b_stride = b_row * 4;
  const auto *a = rows.at, *lower = rows.at + rows.below;
  for (std::int64_t k = 0; k < rows.pairs; k += kTile, a += rows.step, lower += rows.step, b += kTile * b_row) {
    if constexpr (Reads == TileReads::kOnce)
      _tile_stream_loadd(6, b, b_stride);
    else
      _tile_loadd(6, b, b_stride);
    _tile_loadd(4, a, a_stride);
    between();
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (Columns == 2) {
      if constexpr (Reads == TileReads::kOnce)
        _tile_stream_loadd(7, b + kTile, b_stride);
      else
        _tile_loadd(7, b + kTile, b_stride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (Rows == 2) {
      _tile_loadd(5, lower, a_stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (Columns == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  return b;
}

template <TileReads Reads, int Rows, int Columns, class Between>
TESSERA_AMX_INLINE void multiply_whole_tiles(const TileProduct& p, Between& between) {
  const std::int64_t stride = p.sums.row * 4;
  float *at = p.sums.at, *right = at + p.sums.right, *below = at + p.sums.below, *across = below + p.sums.right;
  if (p.add) {
    _tile_loadd(0, at, stride);
    if constexpr (Columns == 2) _tile_loadd(1, right, stride);
    if constexpr (Rows == 2) _tile_loadd(2, below, stride);
    if constexpr (Rows == 2 && Columns == 2) _tile_loadd(3, across, stride);
  } else {
    _tile_zero(0);
    if constexpr (Columns == 2) _tile_zero(1);
    if constexpr (Rows == 2) _tile_zero(2);
    if constexpr (Rows == 2 && Columns == 2) _tile_zero(3);
  }
  NothingBetween nothing;
  const auto* b = add_tiles<Reads, Rows, Columns>(p.a, p.b, p.b_row, between);
  add_tiles<Reads, Rows, Columns>(p.more, b, p.b_row, nothing);
  _tile_stored(0, at, stride);
  if constexpr (Columns == 2) _tile_stored(1, right, stride);
  if constexpr (Rows == 2) _tile_stored(2, below, stride);
  if constexpr (Rows == 2 && Columns == 2) _tile_stored(3, across, stride);
}

/// `rows` and `columns` of 32 each, by whole tiles.
template <TileReads Reads, class Between>
TESSERA_AMX_INLINE void multiply_tiles(const TileProduct& p, std::int64_t rows, std::int64_t columns,
                                       Between& between) {
  if (rows > kTile && columns > kTile) return multiply_whole_tiles<Reads, 2, 2>(p, between);
  if (rows > kTile) return multiply_whole_tiles<Reads, 2, 1>(p, between);
  if (columns > kTile) return multiply_whole_tiles<Reads, 1, 2>(p, between);
  multiply_whole_tiles<Reads, 1, 1>(p, between);
}

}  // namespace tessera::nn::kernels
#endif
