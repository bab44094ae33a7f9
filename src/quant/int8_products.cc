#include "quant/int8_products.h"

#include "base/cpu_level.h"
#include "tessera/base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <numeric>
#include <utility>

#define TESSERA_INT8 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define TESSERA_INT8_INLINE TESSERA_INT8 inline __attribute__((always_inline))

namespace tessera::quant {
namespace {

constexpr std::int64_t kBytesOfVector = 64;

TESSERA_INT8_INLINE std::int32_t sum_of(__m512i v) {
  alignas(64) std::array<std::int32_t, 16> lanes;
  _mm512_store_si512(lanes.data(), v);
  return std::accumulate(lanes.begin(), lanes.end(), 0);
}

/// sums[t][f] += w[t] (x[f] - 128); offsets[t] collects what the 128 add.
template <int Few, int Together>
TESSERA_INT8_INLINE void add_bytes(__m512i (&sums)[Together][Few], __m512i (&offsets)[Together], const std::uint8_t* x,
                                   std::int64_t x_stride, const std::int8_t* w, std::int64_t columns, __mmask64 mask) {
  __m512i codes[Together];
#pragma GCC unroll 4
  for (int t = 0; t < Together; ++t) {
    codes[t] = _mm512_maskz_loadu_epi8(mask, w + t * columns);
    offsets[t] = _mm512_dpbusd_epi32(offsets[t], _mm512_set1_epi8(static_cast<char>(128)), codes[t]);
  }
#pragma GCC unroll 8
  for (int f = 0; f < Few; ++f) {
    const auto few = _mm512_maskz_loadu_epi8(mask, x + f * x_stride);
#pragma GCC unroll 4
    for (int t = 0; t < Together; ++t) sums[t][f] = _mm512_dpbusd_epi32(sums[t][f], few, codes[t]);
  }
}

template <int Few, int Together>
TESSERA_INT8_INLINE void some_rows(const std::uint8_t* x, std::int64_t x_stride, const std::int8_t* w,
                                   std::int64_t columns, std::int32_t* to, std::int64_t stride) {
  constexpr std::int64_t kAhead = 2048;  // bytes of a row that the processor does not fetch by itself
  __m512i sums[Together][Few] = {}, offsets[Together] = {};
  std::int64_t i = 0;
  for (; i + kBytesOfVector <= columns; i += kBytesOfVector) {
    add_bytes(sums, offsets, x + i, x_stride, w + i, columns, ~__mmask64{0});
#pragma GCC unroll 4
    for (int t = 0; t < Together; ++t)
      _mm_prefetch(reinterpret_cast<const char*>(w + t * columns + i + kAhead), _MM_HINT_T0);
  }
  if (i < columns)
    add_bytes(sums, offsets, x + i, x_stride, w + i, columns, ~__mmask64{0} >> (kBytesOfVector - (columns - i)));
#pragma GCC unroll 4
  for (int t = 0; t < Together; ++t)
#pragma GCC unroll 8
    for (int f = 0; f < Few; ++f) to[f * stride + t] = sum_of(_mm512_sub_epi32(sums[t][f], offsets[t]));
}

template <int Few>
TESSERA_INT8 void rows_of(const std::uint8_t* x, std::int64_t x_stride, const std::int8_t* w, std::int64_t count,
                          std::int64_t columns, std::int32_t* sums, std::int64_t stride) {
  constexpr int kTogether = Few <= 2 ? 4 : 2;
  std::int64_t r = 0;
  for (; r + kTogether <= count; r += kTogether)
    some_rows<Few, kTogether>(x, x_stride, w + r * columns, columns, sums + r, stride);
  for (; r < count; ++r) some_rows<Few, 1>(x, x_stride, w + r * columns, columns, sums + r, stride);
}

using RowsOf = void (*)(const std::uint8_t*, std::int64_t, const std::int8_t*, std::int64_t, std::int64_t,
                        std::int32_t*, std::int64_t);
template <int... Before>
constexpr std::array<RowsOf, sizeof...(Before)> rows_by_few(std::integer_sequence<int, Before...>) {
  return {&rows_of<Before + 1>...};
}

}  // namespace

bool has_int8_products() {
  static const bool has = cpu_level() >= CpuLevel::kAvx512 && __builtin_cpu_supports("avx512vnni");
  return has;
}

void int8_row_products(const std::uint8_t* x, std::int64_t x_stride, std::int64_t few, const std::int8_t* w,
                       std::int64_t count, std::int64_t columns, std::int32_t* sums, std::int64_t stride) {
  constexpr auto kByFew = rows_by_few(std::make_integer_sequence<int, kMostInt8Rows>());
  kByFew[static_cast<std::size_t>(few - 1)](x, x_stride, w, count, columns, sums, stride);
}

}  // namespace tessera::quant

#else

namespace tessera::quant {

bool has_int8_products() {
  return false;
}
void int8_row_products(const std::uint8_t*, std::int64_t, std::int64_t, const std::int8_t*, std::int64_t, std::int64_t,
                       std::int32_t*, std::int64_t) {
  TESSERA_CHECK(false, "no instructions for products of int8");
}

}  // namespace tessera::quant

#endif
