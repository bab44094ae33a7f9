#include "nn/kernels/bf16_few_rows.h"

#include "tessera/base/error.h"

#if defined(__x86_64__)

#include <algorithm>
#include <array>
#include <utility>

#include "nn/kernels/bf16_dot_tiles.h"
#include "nn/kernels/bf16_gemm_parts.h"

/// Of each pair of vectors: two neighbouring words, or halves, of each quarter; quarters of 4 words.
#define TESSERA_EACH_WORD(x, y, i)                                                                                    \
  __builtin_shufflevector(x, y, i, i + 16, i + 1, i + 17, i + 4, i + 20, i + 5, i + 21, i + 8, i + 24, i + 9, i + 25, \
                          i + 12, i + 28, i + 13, i + 29)
#define TESSERA_EACH_HALF(x, y, i) __builtin_shufflevector(x, y, i, i + 8, i + 2, i + 10, i + 4, i + 12, i + 6, i + 14)
#define TESSERA_QUARTERS(x, y, i, j, k, l) \
  __builtin_shufflevector(x, y, 2 * (i), 2 * (i) + 1, 2 * (j), 2 * (j) + 1, 2 * (k), 2 * (k) + 1, 2 * (l), 2 * (l) + 1)

namespace tessera::nn::kernels {
namespace {

constexpr std::int64_t kMostRows = 8;

using Words = std::int32_t __attribute__((vector_size(64)));
using Halves = std::int64_t __attribute__((vector_size(64)));

/// 16 rows of 16 words become 16 columns.
TESSERA_BF16_DOT_INLINE void transpose(const std::uint16_t* x, std::int64_t stride, Halves (&out)[16]) {
  Halves words[16], halves[16];
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    const auto even = (Words)_mm512_loadu_si512(x + r * stride), odd = (Words)_mm512_loadu_si512(x + (r + 1) * stride);
    words[r] = (Halves)TESSERA_EACH_WORD(even, odd, 0), words[r + 1] = (Halves)TESSERA_EACH_WORD(even, odd, 2);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4) {  // quarter q of halves[r + i]: word 4 q + i of rows r to r + 3
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      halves[r + 2 * i] = TESSERA_EACH_HALF(words[r + i], words[r + 2 + i], 0);
      halves[r + 2 * i + 1] = TESSERA_EACH_HALF(words[r + i], words[r + 2 + i], 1);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Halves a = TESSERA_QUARTERS(halves[i], halves[4 + i], 0, 1, 4, 5),
                 b = TESSERA_QUARTERS(halves[i], halves[4 + i], 2, 3, 6, 7),
                 c = TESSERA_QUARTERS(halves[8 + i], halves[12 + i], 0, 1, 4, 5),
                 d = TESSERA_QUARTERS(halves[8 + i], halves[12 + i], 2, 3, 6, 7);
    out[i] = TESSERA_QUARTERS(a, c, 0, 2, 4, 6), out[4 + i] = TESSERA_QUARTERS(a, c, 1, 3, 5, 7);
    out[8 + i] = TESSERA_QUARTERS(b, d, 0, 2, 4, 6), out[12 + i] = TESSERA_QUARTERS(b, d, 1, 3, 5, 7);
  }
}

/// Adds to the sums of `Rows` rows and 16 columns the products of 16 pairs, or of the first `pairs` of them.
template <int Rows>
TESSERA_BF16_DOT_INLINE void add_pairs(__m512 (&sums)[Rows], const Bfloat16Matrix& x, const std::uint16_t* w,
                                       std::int64_t stride, std::int64_t pairs) {
  Halves columns[16];
  transpose(w, stride, columns);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i >= pairs) return;
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
      sums[r] = _mm512_dpbf16_ps(sums[r], as_bf16((__m512i)columns[i]), broadcast_pair(x.at + r * x.row + 2 * i));
  }
}

/// sums += x w^T; w: the rows of 16 columns. The next 16 are fetched meanwhile; into the second cache, where they would
/// share a place in the first one.
template <int Rows>
TESSERA_BF16_DOT_INLINE void add_products(__m512 (&sums)[Rows], Bfloat16Matrix x, const std::uint16_t* w,
                                          std::int64_t stride, std::int64_t pairs) {
  const bool shares_places = stride % 1024 == 0;
  for (; pairs >= kLinePairs; pairs -= kLinePairs, x.at += kBfloat16s, w += kBfloat16s) {
#pragma GCC unroll 16
    for (int i = 0; i < kFloats; ++i) {
      const auto* next = reinterpret_cast<const char*>(w + (kFloats + i) * stride);
      if (shares_places) {
        _mm_prefetch(next, _MM_HINT_T1);
      } else {
        _mm_prefetch(next, _MM_HINT_T0);
      }
    }
    add_pairs(sums, x, w, stride, kLinePairs);
  }
  if (pairs == 0) return;
  alignas(64) std::uint16_t rest[kFloats * kBfloat16s] = {};
  for (int i = 0; i < kFloats; ++i) std::copy_n(w + i * stride, 2 * pairs, rest + i * kBfloat16s);
  add_pairs(sums, x, rest, kBfloat16s, pairs);
}

/// 16 columns from `column` on; of them those in the mask are written.
template <int Rows>
TESSERA_BF16_DOT_INLINE void multiply_columns(const Bf16Gemm& p, const Bf16GemmOutput& out, std::int64_t column,
                                              __mmask16 mask) {
  __m512 sums[Rows];
#pragma GCC unroll 8
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  add_products(sums, p.a, p.b.at + column * p.b.column, p.b.column, p.inner / 2);
  if (p.rank > 0) add_products(sums, p.u, p.v.at + column * p.v.column, p.v.column, p.rank / 2);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) put(out, r * out.stride + column, mask, sums[r]);
}

template <int Rows>
TESSERA_BF16_DOT void multiply(const Bf16Gemm& p, const Bf16GemmOutput& out) {
  std::int64_t c = 0;
  for (; c + kFloats <= p.columns; c += kFloats) multiply_columns<Rows>(p, out, c, kAll);
  const auto last = p.columns - kFloats;  // columns before c have been written
  if (c < p.columns) multiply_columns<Rows>(p, out, last, static_cast<__mmask16>(kAll << (c - last)));
}

using Multiply = void (*)(const Bf16Gemm&, const Bf16GemmOutput&);
template <int... RowsBefore>
constexpr std::array<Multiply, sizeof...(RowsBefore)> by_rows(std::integer_sequence<int, RowsBefore...>) {
  return {&multiply<RowsBefore + 1>...};
}

bool lie_in_rows(const Bfloat16Matrix& few, const Bfloat16Matrix& second) {
  return few.column == 1 && second.row == 1;
}

/// Of all 16; without _mm512_reduce_add_ps(), of whose definition g++ 12 warns.
TESSERA_BF16_DOT_INLINE float sum_of_lanes(__m512 v) {
  const auto eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const auto four =
      __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

/// Adds to the sums of `Together` rows of w what the elements in the mask give.
template <int Few, int Together>
TESSERA_BF16_DOT_INLINE void add_elements(__m512 (&sums)[Together][Few], const std::uint16_t* x, std::int64_t x_stride,
                                          const std::uint16_t* w, std::int64_t w_stride, __mmask32 mask) {
  __m512bh parts[Together];
#pragma GCC unroll 4
  for (int r = 0; r < Together; ++r) parts[r] = as_bf16(_mm512_maskz_loadu_epi16(mask, w + r * w_stride));
#pragma GCC unroll 8
  for (int f = 0; f < Few; ++f) {
    const auto few = as_bf16(_mm512_maskz_loadu_epi16(mask, x + f * x_stride));
#pragma GCC unroll 4
    for (int r = 0; r < Together; ++r) sums[r][f] = _mm512_dpbf16_ps(sums[r][f], parts[r], few);
  }
}

/// Rows whose sums do not wait for one another. Each sum has the same order for any Few and Together.
template <int Few, int Together>
TESSERA_BF16_DOT_INLINE void some_cached_rows(const std::uint16_t* x, std::int64_t x_stride, const std::uint16_t* w,
                                              const MatrixRows& rows, float* y, std::int64_t y_stride, bool add) {
  constexpr auto kWhole = ~__mmask32{0};
  __m512 sums[Together][Few];
#pragma GCC unroll 4
  for (auto& of_row : sums)
#pragma GCC unroll 8
    for (auto& sum : of_row) sum = _mm512_setzero_ps();
  std::int64_t i = 0;
  for (; i + kBfloat16s <= rows.dim; i += kBfloat16s) add_elements(sums, x + i, x_stride, w + i, rows.stride, kWhole);
  if (i < rows.dim) add_elements(sums, x + i, x_stride, w + i, rows.stride, (__mmask32{1} << (rows.dim - i)) - 1);
#pragma GCC unroll 8
  for (int f = 0; f < Few; ++f) {
#pragma GCC unroll 4
    for (int r = 0; r < Together; ++r) {
      float& to = y[f * y_stride + r];
      to = add ? to + sum_of_lanes(sums[r][f]) : sum_of_lanes(sums[r][f]);
    }
  }
}

template <int Few>
TESSERA_BF16_DOT void cached_rows(const std::uint16_t* x, std::int64_t x_stride, const std::uint16_t* w,
                                  const MatrixRows& rows, float* y, std::int64_t y_stride, bool add) {
  constexpr int kTogether = Few == 1 ? 4 : 2;
  std::int64_t r = 0;
  for (; r + kTogether <= rows.count; r += kTogether)
    some_cached_rows<Few, kTogether>(x, x_stride, w + r * rows.stride, rows, y + r, y_stride, add);
  for (; r < rows.count; ++r) some_cached_rows<Few, 1>(x, x_stride, w + r * rows.stride, rows, y + r, y_stride, add);
}

using CachedRows = void (*)(const std::uint16_t*, std::int64_t, const std::uint16_t*, const MatrixRows&, float*,
                            std::int64_t, bool);
template <int... RowsBefore>
constexpr std::array<CachedRows, sizeof...(RowsBefore)> cached_by_rows(std::integer_sequence<int, RowsBefore...>) {
  return {&cached_rows<RowsBefore + 1>...};
}

}  // namespace

void cached_row_products(const std::uint16_t* x, std::int64_t x_stride, std::int64_t few, const std::uint16_t* w,
                         const MatrixRows& rows, float* y, std::int64_t y_stride, bool add) {
  constexpr auto kByRows = cached_by_rows(std::make_integer_sequence<int, kMostRows>());
  kByRows[static_cast<std::size_t>(few - 1)](x, x_stride, w, rows, y, y_stride, add);
}

bool has_few_rows(const Bf16Gemm& p) {
  const bool fits = p.rows <= kMostRows && p.columns >= kFloats && p.inner % 2 == 0 && p.factor == nullptr;
  return fits && lie_in_rows(p.a, p.b) && (p.rank == 0 || lie_in_rows(p.u, p.v)) && has_bf16_gemm() && can_turn(p);
}

void few_rows_gemm(const Bf16Gemm& p, const Bf16GemmOutput& out) {
  constexpr auto kByRows = by_rows(std::make_integer_sequence<int, kMostRows>());
  kByRows[static_cast<std::size_t>(p.rows - 1)](p, out);
}

}  // namespace tessera::nn::kernels

#else

namespace tessera::nn::kernels {

bool has_few_rows(const Bf16Gemm&) {
  return false;
}
void few_rows_gemm(const Bf16Gemm&, const Bf16GemmOutput&) {
  TESSERA_CHECK(false, "this processor has no bfloat16 dot products");
}
void cached_row_products(const std::uint16_t*, std::int64_t, std::int64_t, const std::uint16_t*, const MatrixRows&,
                         float*, std::int64_t, bool) {
  TESSERA_CHECK(false, "this processor has no bfloat16 dot products");
}

}  // namespace tessera::nn::kernels

#endif
