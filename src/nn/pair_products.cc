#include "nn/pair_products.h"

#include "nn/bfloat16_pairs.h"
#include "tessera/base/error.h"

#if defined(__x86_64__)

#include <algorithm>

namespace tessera::nn::kernels {
namespace {

/// `Rows` rows and `Columns` vectors of c.
template <int Rows, int Columns>
TESSERA_PAIRS inline void multiply_tile(const PairRows& a, const std::uint32_t* b, std::int64_t b_stride, float* c,
                                        std::int64_t c_stride, std::int64_t pairs, bool add) {
  __m512 sums[Rows][Columns];
#pragma GCC unroll 8
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < Columns; ++n)
      sums[m][n] = add ? _mm512_loadu_ps(c + m * c_stride + n * kFloats) : _mm512_setzero_ps();
  const auto* from = a.at;
  for (std::int64_t p = 0; p < pairs; ++p, from += a.pair, b += b_stride) {
    __m512bh columns[Columns];
#pragma GCC unroll 8
    for (int n = 0; n < Columns; ++n) columns[n] = as_pairs(_mm512_loadu_si512(b + n * kFloats));
#pragma GCC unroll 8
    for (int m = 0; m < Rows; ++m) {
      const auto row = pair_everywhere(from + m * a.row);
#pragma GCC unroll 8
      for (int n = 0; n < Columns; ++n) sums[m][n] = _mm512_dpbf16_ps(sums[m][n], columns[n], row);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < Columns; ++n) _mm512_storeu_ps(c + m * c_stride + n * kFloats, sums[m][n]);
}

/// All rows, for as long as the columns of b stay in the first cache.
template <int Columns>
TESSERA_PAIRS inline void multiply_panel(const PairRows& a, const std::uint32_t* b, std::int64_t b_stride, float* c,
                                         std::int64_t c_stride, std::int64_t rows, std::int64_t pairs, bool add) {
  std::int64_t m = 0;
  const auto from = [&] { return PairRows{a.at + m * a.row, a.row, a.pair}; };
  for (; m + 8 <= rows; m += 8) multiply_tile<8, Columns>(from(), b, b_stride, c + m * c_stride, c_stride, pairs, add);
  for (; m + 2 <= rows; m += 2) multiply_tile<2, Columns>(from(), b, b_stride, c + m * c_stride, c_stride, pairs, add);
  if (m < rows) multiply_tile<1, Columns>(from(), b, b_stride, c + m * c_stride, c_stride, pairs, add);
}

}  // namespace

bool multiplies_bfloat16_pairs() {
  static const bool does =
      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return does;
}

TESSERA_PAIRS void pack_pairs(const std::uint16_t* x, std::int64_t stride, std::int64_t k, std::int64_t n,
                              std::uint32_t* out) {
  for (std::int64_t p = 0; p < (k + 1) / 2; ++p, out += n) {
    const auto *even = x + 2 * p * stride, *odd = even + stride;
    const bool alone = 2 * p + 1 == k;
    for (std::int64_t i = 0; i < n; i += kFloats) {
      const auto high = alone ? _mm512_setzero_si512() : high_halves(kAll, odd + i);
      _mm512_storeu_si512(out + i, _mm512_or_si512(low_halves(kAll, even + i), high));
    }
  }
}

TESSERA_PAIRS void pack_transposed_pairs(const std::uint16_t* x, std::int64_t stride, std::int64_t n, std::int64_t k,
                                         std::uint32_t* out) {
  const std::int64_t columns = pair_columns(n);
  const auto lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const auto index = _mm512_maskz_mullo_epi32(kAll, lane, _mm512_set1_epi32(static_cast<int>(2 * stride)));
  for (std::int64_t i = 0; i < n; i += kFloats) {
    const auto mask = static_cast<__mmask16>((1u << std::min<std::int64_t>(kFloats, n - i)) - 1);
    for (std::int64_t p = 0; p < k / 2; ++p) {
      const auto words = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, index, x + i * stride + 2 * p, 1);
      _mm512_storeu_si512(out + p * columns + i, words);
    }
  }
}

TESSERA_PAIRS void narrow_row(const float* x, std::uint16_t* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kFloats)
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(y + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
}

TESSERA_PAIRS void narrow_pairs(const float* even, const float* odd, std::int64_t n, std::uint32_t* out,
                                std::uint16_t* even_row, std::uint16_t* odd_row) {
  for (std::int64_t i = 0; i < n; i += kFloats) {
    const auto low = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(even + i));
    const auto high = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(odd + i));
    const auto upper = _mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, high), 16);
    _mm512_storeu_si512(out + i, _mm512_or_si512(_mm512_maskz_cvtepu16_epi32(kAll, low), upper));
    if (even_row != nullptr) _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(even_row + i), low);
    if (odd_row != nullptr) _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(odd_row + i), high);
  }
}

TESSERA_PAIRS void multiply_pairs(const PairRows& a, const std::uint32_t* b, std::int64_t b_stride, float* c,
                                  std::int64_t c_stride, std::int64_t rows, std::int64_t n, std::int64_t pairs,
                                  bool add) {
  std::int64_t i = 0;
  for (; i + 2 * kFloats <= n; i += 2 * kFloats)
    multiply_panel<2>(a, b + i, b_stride, c + i, c_stride, rows, pairs, add);
  for (; i < n; i += kFloats) multiply_panel<1>(a, b + i, b_stride, c + i, c_stride, rows, pairs, add);
}

}  // namespace tessera::nn::kernels

#else

namespace tessera::nn::kernels {

bool multiplies_bfloat16_pairs() {
  return false;
}
void pack_pairs(const std::uint16_t*, std::int64_t, std::int64_t, std::int64_t, std::uint32_t*) {
  TESSERA_CHECK(false, "no instructions for pairs of bfloat16");
}
void pack_transposed_pairs(const std::uint16_t*, std::int64_t, std::int64_t, std::int64_t, std::uint32_t*) {
  TESSERA_CHECK(false, "no instructions for pairs of bfloat16");
}
void narrow_row(const float*, std::uint16_t*, std::int64_t) {
  TESSERA_CHECK(false, "no instructions for pairs of bfloat16");
}
void narrow_pairs(const float*, const float*, std::int64_t, std::uint32_t*, std::uint16_t*, std::uint16_t*) {
  TESSERA_CHECK(false, "no instructions for pairs of bfloat16");
}
void multiply_pairs(const PairRows&, const std::uint32_t*, std::int64_t, float*, std::int64_t, std::int64_t,
                    std::int64_t, std::int64_t, bool) {
  TESSERA_CHECK(false, "no instructions for pairs of bfloat16");
}

}  // namespace tessera::nn::kernels

#endif
