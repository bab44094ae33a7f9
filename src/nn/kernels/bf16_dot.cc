#include "nn/kernels/bf16_dot.h"

#include "base/cpu_level.h"
#include "nn/kernels/bf16_dot_tiles.h"
#include "tessera/base/error.h"

#if defined(__x86_64__)

#include <algorithm>
#include <array>

/// Four words of each quarter, numbered as in the first one: x's from 0, y's from 16.
#define TESSERA_EACH_QUARTER(x, y, i, j, k, l)                                                                      \
  __builtin_shufflevector(x, y, i, j, k, l, i + 4, j + 4, k + 4, l + 4, i + 8, j + 8, k + 8, l + 8, i + 12, j + 12, \
                          k + 12, l + 12)

namespace tessera::nn::kernels {
namespace {

using Words = std::int32_t __attribute__((vector_size(64)));

/// `Rows` rows and `Columns` vectors of c.
template <int Rows, int Columns>
TESSERA_BF16_DOT void multiply_tile(const DotRows& a, const VnniMatrix& b, const SumMatrix& c, std::int64_t pairs,
                                    bool add) {
  __m512 sums[Rows][Columns];
  load_sums(sums, add, c.at, c.stride);
  add_dot_products(sums, a, b, pairs);
  store_sums(sums, c.at, c.stride);
}

/// All rows, for as long as the columns of b stay in the first cache.
template <int Columns>
TESSERA_BF16_DOT void multiply_panel(const DotRows& a, const VnniMatrix& b, const SumMatrix& c, const DotSize& size,
                                     bool add) {
  std::int64_t m = 0;
  const auto from = [&] { return DotRows{a.at + m * a.row, a.row, a.pair}; };
  const auto to = [&] { return SumMatrix{c.at + m * c.stride, c.stride}; };
  constexpr int kRows = Columns == 4 ? 6 : 8;  // as many sums as registers hold
  for (; m + kRows <= size.rows; m += kRows) multiply_tile<kRows, Columns>(from(), b, to(), size.pairs, add);
  for (; m + 4 <= size.rows; m += 4) multiply_tile<4, Columns>(from(), b, to(), size.pairs, add);
  for (; m + 2 <= size.rows; m += 2) multiply_tile<2, Columns>(from(), b, to(), size.pairs, add);
  if (m < size.rows) multiply_tile<1, Columns>(from(), b, to(), size.pairs, add);
}

/// Words 4 q to 4 q + 3 of rows r, r + 4, r + 8 and r + 12.
TESSERA_BF16_DOT_INLINE Words quarters(const std::uint16_t* x, std::int64_t stride, int r, int q) {
  const auto at = [&](int i) { return reinterpret_cast<const __m128i_u*>(x + (r + 4 * i) * stride + 8 * q); };
  auto rows = _mm512_maskz_broadcast_i32x4(0x000F, _mm_loadu_si128(at(0)));
  rows = _mm512_mask_broadcast_i32x4(rows, 0x00F0, _mm_loadu_si128(at(1)));
  rows = _mm512_mask_broadcast_i32x4(rows, 0x0F00, _mm_loadu_si128(at(2)));
  return (Words)_mm512_mask_broadcast_i32x4(rows, 0xF000, _mm_loadu_si128(at(3)));
}

/// Where the elements of two vectors stand once they are interleaved.
alignas(64) constexpr auto kInterleaved = [] {
  std::array<std::uint16_t, 2 * kBfloat16s> places{};
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::uint16_t>(i / 2 + i % 2 * kBfloat16s);
  return places;
}();

/// 16 rows of 16 words become 16 columns.
TESSERA_BF16_DOT_INLINE void transpose_words(const std::uint16_t* x, std::int64_t stride, std::uint32_t* out,
                                             std::int64_t out_stride) {
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q, out += 4 * out_stride) {
    const Words a = quarters(x, stride, 0, q), b = quarters(x, stride, 1, q), c = quarters(x, stride, 2, q),
                d = quarters(x, stride, 3, q);
    const Words ab = TESSERA_EACH_QUARTER(a, b, 0, 16, 1, 17), cd = TESSERA_EACH_QUARTER(c, d, 0, 16, 1, 17);
    const Words above = TESSERA_EACH_QUARTER(a, b, 2, 18, 3, 19), below = TESSERA_EACH_QUARTER(c, d, 2, 18, 3, 19);
    _mm512_storeu_si512(out, (__m512i)TESSERA_EACH_QUARTER(ab, cd, 0, 1, 16, 17));
    _mm512_storeu_si512(out + out_stride, (__m512i)TESSERA_EACH_QUARTER(ab, cd, 2, 3, 18, 19));
    _mm512_storeu_si512(out + 2 * out_stride, (__m512i)TESSERA_EACH_QUARTER(above, below, 0, 1, 16, 17));
    _mm512_storeu_si512(out + 3 * out_stride, (__m512i)TESSERA_EACH_QUARTER(above, below, 2, 3, 18, 19));
  }
}

}  // namespace

bool has_bf16_dot() {
  return cpu_level() >= CpuLevel::kAvx512Bf16;
}

TESSERA_BF16_DOT void pack_vnni(const std::uint16_t* x, std::int64_t stride, std::int64_t k, std::int64_t n,
                                std::uint32_t* out, std::int64_t out_stride) {
  const auto low = _mm512_load_si512(kInterleaved.data()), high = _mm512_load_si512(kInterleaved.data() + kBfloat16s);
  for (std::int64_t p = 0; p < (k + 1) / 2; ++p, out += out_stride) {
    const auto *even = x + 2 * p * stride, *odd = even + stride;
    const bool alone = 2 * p + 1 == k;
    std::int64_t i = 0;
    for (; !alone && i + kBfloat16s <= n; i += kBfloat16s) {
      const auto first = _mm512_loadu_si512(even + i), second = _mm512_loadu_si512(odd + i);
      _mm512_storeu_si512(out + i, _mm512_permutex2var_epi16(first, low, second));
      _mm512_storeu_si512(out + i + kFloats, _mm512_permutex2var_epi16(first, high, second));
    }
    for (; i < n; i += kFloats)
      _mm512_storeu_si512(out + i, interleaved(first_lanes(n - i), even + i, alone ? nullptr : odd + i));
  }
}

TESSERA_BF16_DOT void pack_vnni_transposed(const std::uint16_t* x, std::int64_t stride, std::int64_t n, std::int64_t k,
                                           std::uint32_t* out, std::int64_t out_stride) {
  for (std::int64_t i = 0; i < n; i += kFloats, x += kFloats * stride, out += kFloats) {
    const std::int64_t rows = std::min(kFloats, n - i), pairs = k / 2;
    std::int64_t p = 0;
    if (rows == kFloats)
      for (; p + kFloats <= pairs; p += kFloats) transpose_words(x + 2 * p, stride, out + p * out_stride, out_stride);
    for (; p < pairs; ++p) {
      for (std::int64_t r = 0; r < kFloats; ++r) {
        std::uint32_t word = 0;
        if (r < rows) std::memcpy(&word, x + r * stride + 2 * p, sizeof word);
        out[p * out_stride + r] = word;
      }
    }
  }
}

TESSERA_BF16_DOT void narrow_row(const float* x, std::uint16_t* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kBfloat16s <= n; i += kBfloat16s)
    _mm512_storeu_si512(y + i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + kFloats), _mm512_loadu_ps(x + i)));
  for (; i < n; i += kFloats)
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(y + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
}

TESSERA_BF16_DOT void narrow_to_vnni(const float* even, const float* odd, std::int64_t n, std::uint32_t* out,
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

TESSERA_BF16_DOT void multiply_vnni(const DotRows& a, const VnniMatrix& b, const SumMatrix& c, const DotSize& size,
                                    bool add) {
  std::int64_t i = 0;
  const auto from = [&] { return VnniMatrix{b.at + i, b.stride}; };
  const auto to = [&] { return SumMatrix{c.at + i, c.stride}; };
  for (; i + 4 * kFloats <= size.columns; i += 4 * kFloats) multiply_panel<4>(a, from(), to(), size, add);
  for (; i + 2 * kFloats <= size.columns; i += 2 * kFloats) multiply_panel<2>(a, from(), to(), size, add);
  for (; i < size.columns; i += kFloats) multiply_panel<1>(a, from(), to(), size, add);
}

}  // namespace tessera::nn::kernels

#else

namespace tessera::nn::kernels {

bool has_bf16_dot() {
  return false;
}
void pack_vnni(const std::uint16_t*, std::int64_t, std::int64_t, std::int64_t, std::uint32_t*, std::int64_t) {
  TESSERA_CHECK(false, "this processor has no bfloat16 dot products");
}
void pack_vnni_transposed(const std::uint16_t*, std::int64_t, std::int64_t, std::int64_t, std::uint32_t*,
                          std::int64_t) {
  TESSERA_CHECK(false, "this processor has no bfloat16 dot products");
}
void narrow_row(const float*, std::uint16_t*, std::int64_t) {
  TESSERA_CHECK(false, "this processor has no bfloat16 dot products");
}
void narrow_to_vnni(const float*, const float*, std::int64_t, std::uint32_t*, std::uint16_t*, std::uint16_t*) {
  TESSERA_CHECK(false, "this processor has no bfloat16 dot products");
}
void multiply_vnni(const DotRows&, const VnniMatrix&, const SumMatrix&, const DotSize&, bool) {
  TESSERA_CHECK(false, "this processor has no bfloat16 dot products");
}

}  // namespace tessera::nn::kernels

#endif
