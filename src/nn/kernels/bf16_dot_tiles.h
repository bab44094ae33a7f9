#pragma once
// Tiles of sums in registers, for the loops of bf16_dot.h and bf16_gemm.h: AVX-512's VDPBF16PS adds to each float32 the
// products of a pair of bfloat16 with a pair.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "nn/kernels/bf16_dot.h"
#include "nn/kernels/bf16_gemm.h"

#define TESSERA_BF16_DOT __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define TESSERA_BF16_DOT_INLINE TESSERA_BF16_DOT inline __attribute__((always_inline))

namespace tessera::nn::kernels {

constexpr std::int64_t kFloats = 16, kBfloat16s = 32;  // in a vector
constexpr __mmask16 kAll = 0xFFFF;

/// A mask of the first n of a vector's 16.
inline __mmask16 first_lanes(std::int64_t n) {
  return n >= kFloats ? kAll : static_cast<__mmask16>((1u << n) - 1);
}

TESSERA_BF16_DOT_INLINE __m512bh as_bf16(__m512i v) {
  return (__m512bh)v;
}

// The forms with a mask, because g++ 12 warns of the others' own definitions (its bug 105593).
TESSERA_BF16_DOT_INLINE __m512i low_halves(__mmask16 mask, const std::uint16_t* x) {
  return _mm512_maskz_cvtepu16_epi32(mask, _mm256_maskz_loadu_epi16(mask, x));
}
TESSERA_BF16_DOT_INLINE __m512i high_halves(__mmask16 mask, const std::uint16_t* x) {
  return _mm512_maskz_slli_epi32(mask, low_halves(mask, x), 16);
}

/// Elements of two rows beside each other; `odd` is null for a row without a second.
TESSERA_BF16_DOT_INLINE __m512i interleaved(__mmask16 mask, const std::uint16_t* even, const std::uint16_t* odd) {
  const auto high = odd == nullptr ? _mm512_setzero_si512() : high_halves(mask, odd);
  return _mm512_or_si512(low_halves(mask, even), high);
}

/// The same pair in every place.
TESSERA_BF16_DOT_INLINE __m512bh broadcast_pair(const std::uint16_t* x) {
  int pair;
  std::memcpy(&pair, x, sizeof pair);
  return as_bf16(_mm512_set1_epi32(pair));
}

/// A tile's sums += a b over `pairs` pairs; b: `Columns` vectors of words in each row.
template <int Rows, int Columns>
TESSERA_BF16_DOT_INLINE void add_dot_products(__m512 (&sums)[Rows][Columns], const DotRows& a, const VnniMatrix& b,
                                              std::int64_t pairs) {
  const auto* from = a.at;
  const auto* words = b.at;
  for (std::int64_t p = 0; p < pairs; ++p, from += a.pair, words += b.stride) {
    __m512bh columns[Columns];
#pragma GCC unroll 8
    for (int n = 0; n < Columns; ++n) columns[n] = as_bf16(_mm512_loadu_si512(words + n * kFloats));
#pragma GCC unroll 8
    for (int m = 0; m < Rows; ++m) {
      const auto row = broadcast_pair(from + m * a.row);
#pragma GCC unroll 8
      for (int n = 0; n < Columns; ++n) sums[m][n] = _mm512_dpbf16_ps(sums[m][n], columns[n], row);
    }
  }
}

/// The sums that begin a tile: zeros, or what stands at c, rows c_stride apart.
template <int Rows, int Columns>
TESSERA_BF16_DOT_INLINE void load_sums(__m512 (&sums)[Rows][Columns], bool from_memory, const float* c,
                                       std::int64_t c_stride) {
#pragma GCC unroll 8
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < Columns; ++n)
      sums[m][n] = from_memory ? _mm512_loadu_ps(c + m * c_stride + n * kFloats) : _mm512_setzero_ps();
}

template <int Rows, int Columns>
TESSERA_BF16_DOT_INLINE void store_sums(const __m512 (&sums)[Rows][Columns], float* c, std::int64_t c_stride) {
#pragma GCC unroll 8
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < Columns; ++n) _mm512_storeu_ps(c + m * c_stride + n * kFloats, sums[m][n]);
}

/// The sums of some columns, to the nearest.
TESSERA_BF16_DOT_INLINE void put(const Bf16GemmOutput& out, std::int64_t at, __mmask16 mask, __m512 sum) {
  sum = _mm512_mul_ps(sum, _mm512_set1_ps(out.alpha));
  auto* y = out.at + at;
  if (out.add) sum = _mm512_add_ps(sum, _mm512_castsi512_ps(high_halves(mask, y)));
  _mm256_mask_storeu_epi16(y, mask, (__m256i)_mm512_cvtneps_pbh(sum));
}

}  // namespace tessera::nn::kernels
#endif
