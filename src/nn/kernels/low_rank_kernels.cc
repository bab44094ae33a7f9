#include "nn/kernels/low_rank_kernels.h"

#include "nn/kernels/bf16_dot.h"
#include "nn/kernels/bf16_dot_tiles.h"
#include "tessera/base/error.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cstring>

namespace tessera::nn::kernels {
namespace {

constexpr std::int64_t kRowsOfBlock = 32;  // of x, that stay in the cache while their columns are gone through

/// out[R] = scale * the totals of R vectors.
TESSERA_BF16_DOT_INLINE void store_totals(const __m512 (&v)[8], float scale, std::uint16_t* out) {
  __m512 pairs[4], fours[2];
  for (int i = 0; i < 4; ++i) {
    const auto &x = v[2 * i], &y = v[2 * i + 1];
    pairs[i] = __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
               __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  for (int i = 0; i < 2; ++i) {
    const auto &x = pairs[2 * i], &y = pairs[2 * i + 1];
    fours[i] = __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  const __m512 halves =
      __builtin_shufflevector(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
      __builtin_shufflevector(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  const __m256 sums = __builtin_shufflevector(halves, halves, 0, 1, 2, 3, 8, 9, 10, 11) +
                      __builtin_shufflevector(halves, halves, 4, 5, 6, 7, 12, 13, 14, 15);
  const auto narrow = _mm256_cvtneps_pbh(sums * _mm256_set1_ps(scale));
  std::memcpy(out, &narrow, sizeof narrow);
}
TESSERA_BF16_DOT_INLINE void store_totals(const __m512 (&v)[2], float scale, std::uint16_t* out) {
  const __m512 none = _mm512_setzero_ps();
  std::uint16_t eight[8];
  store_totals({v[0], v[1], none, none, none, none, none, none}, scale, eight);
  std::memcpy(out, eight, 2 * sizeof(std::uint16_t));
}

template <int Rows, int R, class Load>
TESSERA_BF16_DOT_INLINE void add_products(__m512 (&sums)[Rows][R], const std::uint16_t* x, const std::uint16_t* a,
                                          std::int64_t m, const Load& load) {
  __m512bh row[Rows];
#pragma GCC unroll 8
  for (int n = 0; n < Rows; ++n) row[n] = load(x + n * m);
#pragma GCC unroll 8
  for (int k = 0; k < R; ++k) {
    const auto column = load(a + k * m);
#pragma GCC unroll 8
    for (int n = 0; n < Rows; ++n) sums[n][k] = _mm512_dpbf16_ps(sums[n][k], row[n], column);
  }
}

/// u[Rows, R] = scale * x[Rows, M] a[R, M]^T, u's rows being r apart.
template <int Rows, int R>
TESSERA_BF16_DOT_INLINE void project(const std::uint16_t* x, const std::uint16_t* a, std::uint16_t* u, std::int64_t m,
                                     std::int64_t r, float scale) {
  __m512 sums[Rows][R];
#pragma GCC unroll 8
  for (int n = 0; n < Rows; ++n)
#pragma GCC unroll 8
    for (int k = 0; k < R; ++k) sums[n][k] = _mm512_setzero_ps();
  std::int64_t i = 0;
  for (; i + kBfloat16s <= m; i += kBfloat16s)
    add_products(sums, x + i, a + i, m,
                 [](const auto* at) TESSERA_BF16_DOT { return as_bf16(_mm512_loadu_si512(at)); });
  if (i < m) {
    const __mmask32 rest = (__mmask32{1} << (m - i)) - 1;
    add_products(sums, x + i, a + i, m,
                 [rest](const auto* at) TESSERA_BF16_DOT { return as_bf16(_mm512_maskz_loadu_epi16(rest, at)); });
  }
#pragma GCC unroll 8
  for (int n = 0; n < Rows; ++n) store_totals(sums[n], scale, u + n * r);
}

/// The same for many rows, for as long as R rows of a stay in the first cache.
template <int R>
TESSERA_BF16_DOT_INLINE void project_block(const std::uint16_t* x, const std::uint16_t* a, std::uint16_t* u,
                                           const LowRankSize& size, float scale) {
  const std::int64_t m = size.stride, r = size.rank;
  std::int64_t n = 0;
  for (; n + 2 <= size.rows; n += 2) project<2, R>(x + n * m, a, u + n * r, m, r, scale);
  for (; n < size.rows; ++n) project<1, R>(x + n * m, a, u + n * r, m, r, scale);
}

/// Rows of x in pairs; `odd`: the last one is alone.
struct RowPairs {
  std::int64_t count, stride;
  bool odd;
};

/// sums[R, one or two vectors of columns] += u^T x over all pairs. u: [pairs, kFloats] words.
template <int R, int Columns>
TESSERA_BF16_DOT_INLINE void gradient(const std::uint32_t* u, const std::uint16_t* x, float* sums,
                                      const RowPairs& pairs, __mmask16 last) {
  const std::int64_t m = pairs.stride;
  __m512 acc[R][Columns];
#pragma GCC unroll 8
  for (int k = 0; k < R; ++k)
#pragma GCC unroll 8
    for (int c = 0; c < Columns; ++c) acc[k][c] = _mm512_setzero_ps();
  for (std::int64_t n = 0; n < pairs.count; ++n) {
    __m512bh rows[Columns];
#pragma GCC unroll 8
    for (int c = 0; c < Columns; ++c) {
      const auto* even = x + 2 * n * m + c * kFloats;
      const bool alone = pairs.odd && n + 1 == pairs.count;
      rows[c] = as_bf16(interleaved(c + 1 < Columns ? kAll : last, even, alone ? nullptr : even + m));
    }
#pragma GCC unroll 8
    for (int k = 0; k < R; ++k) {
      const auto factor = as_bf16(_mm512_set1_epi32(static_cast<int>(u[n * kFloats + k])));
#pragma GCC unroll 8
      for (int c = 0; c < Columns; ++c) acc[k][c] = _mm512_dpbf16_ps(acc[k][c], rows[c], factor);
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < R; ++k)
#pragma GCC unroll 8
    for (int c = 0; c < Columns; ++c) {
      const __mmask16 mask = c + 1 < Columns ? kAll : last;
      float* to = sums + k * m + c * kFloats;
      _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), acc[k][c]));
    }
}

template <int R>
TESSERA_BF16_DOT_INLINE void gradient_of_block(const std::uint32_t* u, const std::uint16_t* x, float* sums,
                                               const LowRankSize& size) {
  const RowPairs pairs{(size.rows + 1) / 2, size.stride, size.rows % 2 != 0};
  std::int64_t i = 0;
  for (; i + 2 * kFloats <= size.columns; i += 2 * kFloats) gradient<R, 2>(u, x + i, sums + i, pairs, kAll);
  for (; i < size.columns; i += kFloats) gradient<R, 1>(u, x + i, sums + i, pairs, first_lanes(size.columns - i));
}

}  // namespace

TESSERA_BF16_DOT void low_rank_project(const std::uint16_t* x, const std::uint16_t* a, std::uint16_t* u,
                                       const LowRankSize& size, float scale) {
  const std::int64_t m = size.stride, r = size.rank;
  for (std::int64_t n = 0; n < size.rows; n += kRowsOfBlock) {
    const LowRankSize block{std::min(kRowsOfBlock, size.rows - n), size.columns, m, r};
    std::int64_t k = 0;
    for (; k + 8 <= r; k += 8) project_block<8>(x + n * m, a + k * m, u + n * r + k, block, scale);
    for (; k < r; k += 2) project_block<2>(x + n * m, a + k * m, u + n * r + k, block, scale);
  }
}

TESSERA_BF16_DOT void low_rank_gradient(const std::uint16_t* u, const std::uint16_t* x, float* sums,
                                        const LowRankSize& size) {
  const std::int64_t m = size.stride, r = size.rank;
  std::uint32_t words[kRowsOfBlock / 2 * kFloats];
  for (std::int64_t n = 0; n < size.rows; n += kRowsOfBlock) {
    const LowRankSize block{std::min(kRowsOfBlock, size.rows - n), size.columns, m, r};
    pack_vnni(u + n * r, r, block.rows, r, words, kFloats);
    std::int64_t k = 0;
    for (; k + 8 <= r; k += 8) gradient_of_block<8>(words + k, x + n * m, sums + k * m, block);
    for (; k < r; k += 2) gradient_of_block<2>(words + k, x + n * m, sums + k * m, block);
  }
}

}  // namespace tessera::nn::kernels

#else

namespace tessera::nn::kernels {

void low_rank_project(const std::uint16_t*, const std::uint16_t*, std::uint16_t*, const LowRankSize&, float) {
  TESSERA_CHECK(false, "this processor has no bfloat16 dot products");
}
void low_rank_gradient(const std::uint16_t*, const std::uint16_t*, float*, const LowRankSize&) {
  TESSERA_CHECK(false, "this processor has no bfloat16 dot products");
}

}  // namespace tessera::nn::kernels

#endif
