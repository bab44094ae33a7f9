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

/// sums (+)= a b for up to 2 x 2 tiles. a: rows `row` words apart, the next 16 rows from `below` on, the next 16 pairs
/// `step` words on. b: pairs `b_row` words apart.
struct TileProduct {
  const std::uint32_t* a;
  std::int64_t row, below, step;
  const std::uint32_t* b;
  std::int64_t b_row;
  float* sums;
  std::int64_t sums_row;
  std::int64_t pairs;  // a multiple of 16
  bool add;
};

/// Sums are tiles 0 to 3, rows 4 and 5, columns 6 and 7.
template <int Rows, int Columns>
TESSERA_AMX_INLINE void multiply_tiles(const TileProduct& p) {
  const std::int64_t stride = p.sums_row * 4, a_stride = p.row * 4, b_stride = p.b_row * 4;
  float *right = p.sums + kTile, *below = p.sums + kTile * p.sums_row, *across = below + kTile;
  if (p.add) {
    _tile_loadd(0, p.sums, stride);
    if constexpr (Columns == 2) _tile_loadd(1, right, stride);
    if constexpr (Rows == 2) _tile_loadd(2, below, stride);
    if constexpr (Rows == 2 && Columns == 2) _tile_loadd(3, across, stride);
  } else {
    _tile_zero(0);
    if constexpr (Columns == 2) _tile_zero(1);
    if constexpr (Rows == 2) _tile_zero(2);
    if constexpr (Rows == 2 && Columns == 2) _tile_zero(3);
  }
  const auto *a = p.a, *lower = p.a + p.below, *b = p.b;
  for (std::int64_t k = 0; k < p.pairs; k += kTile, a += p.step, lower += p.step, b += kTile * p.b_row) {
    _tile_loadd(6, b, b_stride);
    _tile_loadd(4, a, a_stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (Columns == 2) {
      _tile_loadd(7, b + kTile, b_stride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (Rows == 2) {
      _tile_loadd(5, lower, a_stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (Columns == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, p.sums, stride);
  if constexpr (Columns == 2) _tile_stored(1, right, stride);
  if constexpr (Rows == 2) _tile_stored(2, below, stride);
  if constexpr (Rows == 2 && Columns == 2) _tile_stored(3, across, stride);
}

/// `rows` and `columns` of 32 each, by whole tiles.
TESSERA_AMX_INLINE void multiply_tiles(const TileProduct& p, std::int64_t rows, std::int64_t columns) {
  if (rows > kTile && columns > kTile) return multiply_tiles<2, 2>(p);
  if (rows > kTile) return multiply_tiles<2, 1>(p);
  if (columns > kTile) return multiply_tiles<1, 2>(p);
  multiply_tiles<1, 1>(p);
}

}  // namespace tessera::nn::kernels
#endif
