#include "nn/kernels/token_panels.h"

#include <algorithm>
#include <type_traits>

#include "base/cpu_dispatch.h"
#include "nn/kernels/float_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/token_panels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "nn/kernels/panel_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {

constexpr std::int64_t kVectors = kPanelTokens / kLanes;

template <class T>
HWY_INLINE Vector load_wide(const T* x) {
  float wide[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) wide[i] = widened(x[i]);
  return hn::LoadU(Floats(), wide);
}

template <class T>
HWY_INLINE void add_wide(Vector v, T* y) {
  float sum[kLanes];
  hn::StoreU(v, Floats(), sum);
  for (std::int64_t i = 0; i < kLanes; ++i) narrow_to(y[i], widened(y[i]) + sum[i]);
}

#if HWY_TARGET == HWY_SCALAR
template <class T>
void turn(const TokenRows<const T>& rows, float* panel) {
  for (std::int64_t i = 0; i < rows.width; ++i)
    for (std::int64_t t = 0; t < kPanelTokens; ++t)
      panel[i * kPanelTokens + t] = t < rows.tokens ? widened(rows.at[t * rows.stride + i]) : 0.0F;
}

template <class T>
void add_turned(const float* panel, const TokenRows<T>& rows) {
  for (std::int64_t t = 0; t < rows.tokens; ++t) {
    T* row = rows.at + t * rows.stride;
    for (std::int64_t i = 0; i < rows.width; ++i) narrow_to(row[i], widened(row[i]) + panel[i * kPanelTokens + t]);
  }
}
#else
/// f(first element, first token) for whole tiles of four tokens and vectors of their elements, one(element, token) for
/// the rest. A tile is as wide as a line of the cache, of which all tokens are read before the next.
template <class T, class Tile, class One>
HWY_INLINE void for_tiles(const TokenRows<T>& rows, const Tile& tile, const One& one) {
  constexpr std::int64_t kColumns = std::max<std::int64_t>(kLanes, 64 / sizeof(T)), kAhead = 12;
  const std::int64_t whole = rows.width / kLanes * kLanes, fours = rows.tokens / 4 * 4;
  for (std::int64_t begin = 0; begin < whole; begin += kColumns) {
    for (std::int64_t t = 0; t < fours; t += 4) {
      const bool past = t + kAhead >= fours;  // then of the next columns
      const T* ahead = rows.at + begin + (t + kAhead) * rows.stride + (past ? kColumns - fours * rows.stride : 0);
      for (std::int64_t k = 0; k < 4; ++k) __builtin_prefetch(ahead + k * rows.stride);
      for (std::int64_t i = begin; i < std::min(begin + kColumns, whole); i += kLanes) tile(i, t);
    }
  }
  for (std::int64_t t = 0; t < rows.tokens; ++t)
    for (std::int64_t i = t < fours ? whole : 0; i < rows.width; ++i) one(i, t);
}

template <class T>
void turn(const TokenRows<const T>& rows, float* panel) {
  if (rows.tokens < kPanelTokens) std::fill_n(panel, rows.width * kPanelTokens, 0.0F);
  for_tiles(
      rows,
      [&](std::int64_t i, std::int64_t t) {
        Vector v[4];
#pragma GCC unroll 4
        for (std::int64_t k = 0; k < 4; ++k) v[k] = load_wide(rows.at + (t + k) * rows.stride + i);
        transpose(Floats(), v);
#pragma GCC unroll 4
        for (std::int64_t k = 0; k < 4; ++k)
          store_blocks(Floats(), v[k], panel + (i + k) * kPanelTokens + t, 4 * kPanelTokens);
      },
      [&](std::int64_t i, std::int64_t t) { panel[i * kPanelTokens + t] = widened(rows.at[t * rows.stride + i]); });
}

template <class T>
void add_turned(const float* panel, const TokenRows<T>& rows) {
  for_tiles(
      rows,
      [&](std::int64_t i, std::int64_t t) {
        Vector v[4];
#pragma GCC unroll 4
        for (std::int64_t k = 0; k < 4; ++k)
          v[k] = load_blocks(Floats(), panel + (i + k) * kPanelTokens + t, 4 * kPanelTokens);
        transpose(Floats(), v);
#pragma GCC unroll 4
        for (std::int64_t k = 0; k < 4; ++k) add_wide(v[k], rows.at + (t + k) * rows.stride + i);
      },
      [&](std::int64_t i, std::int64_t t) {
        T& y = rows.at[t * rows.stride + i];
        narrow_to(y, widened(y) + panel[i * kPanelTokens + t]);
      });
}
#endif

// Named for HWY_EXPORT, which knows no overloads.
void turn_float(const TokenRows<const float>& rows, float* panel) {
  turn(rows, panel);
}
void turn_bfloat16(const TokenRows<const std::uint16_t>& rows, float* panel) {
  turn(rows, panel);
}
void add_float(const float* panel, const TokenRows<float>& rows) {
  add_turned(panel, rows);
}
void add_bfloat16(const float* panel, const TokenRows<std::uint16_t>& rows) {
  add_turned(panel, rows);
}

/// Sums of so many vectors stay in registers.
constexpr std::int64_t kAtOnce = std::min<std::int64_t>(kVectors, 8);

void sparse_lines(const SparseLines& lines, std::int64_t first, std::int64_t last, const float* numbers, const float* x,
                  float* y) {
  constexpr Floats d;
  for (std::int64_t i = first; i < last; ++i) {
    for (std::int64_t c = 0; c < kPanelTokens; c += kAtOnce * kLanes) {
      Vector sums[kAtOnce];
#pragma GCC unroll 8
      for (std::int64_t v = 0; v < kAtOnce; ++v) sums[v] = hn::Zero(d);
      for (std::int64_t k = lines.begin[i]; k < lines.begin[i + 1]; ++k) {
        const auto number = hn::Set(d, numbers[lines.number[k]]);
        const float* row = x + lines.other[k] * kPanelTokens + c;
#pragma GCC unroll 8
        for (std::int64_t v = 0; v < kAtOnce; ++v)
          sums[v] = hn::MulAdd(number, hn::LoadU(d, row + v * kLanes), sums[v]);
      }
#pragma GCC unroll 8
      for (std::int64_t v = 0; v < kAtOnce; ++v) hn::StoreU(sums[v], d, y + i * kPanelTokens + c + v * kLanes);
    }
  }
}

void sparse_dots(const SparseLines& lines, std::int64_t first, std::int64_t last, const float* x, const float* y,
                 float* sums) {
  constexpr Floats d;
  std::int64_t line = 0;  // of number k
  if (first < last) line = std::upper_bound(lines.begin, lines.begin + lines.lines + 1, first) - lines.begin - 1;
  for (std::int64_t k = first; k < last; k += 4) {
    Vector products[4];
#pragma GCC unroll 4
    for (std::int64_t j = 0; j < 4; ++j) {
      const auto at = std::min(k + j, last - 1);  // the last once more, where there are no four
      while (lines.begin[line + 1] <= at) ++line;
      const float *a = x + lines.other[at] * kPanelTokens, *b = y + line * kPanelTokens;
      auto sum = hn::Zero(d);
#pragma GCC unroll 16
      for (std::int64_t v = 0; v < kVectors; ++v)
        sum = hn::MulAdd(hn::LoadU(d, a + v * kLanes), hn::LoadU(d, b + v * kLanes), sum);
      products[j] = sum;
    }
    float four[4];
    sums_of_four(products[0], products[1], products[2], products[3], four);
    for (std::int64_t j = 0; j < std::min<std::int64_t>(4, last - k); ++j) sums[lines.number[k + j]] += four[j];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::nn::kernels {

HWY_EXPORT(turn_float);
HWY_EXPORT(turn_bfloat16);
HWY_EXPORT(add_float);
HWY_EXPORT(add_bfloat16);
HWY_EXPORT(sparse_lines);
HWY_EXPORT(sparse_dots);

void turn_to_panel(const TokenRows<const float>& rows, float* panel) {
  TESSERA_DISPATCH(turn_float)(rows, panel);
}
void turn_to_panel(const TokenRows<const std::uint16_t>& rows, float* panel) {
  TESSERA_DISPATCH(turn_bfloat16)(rows, panel);
}
void add_panel(const float* panel, const TokenRows<float>& rows) {
  TESSERA_DISPATCH(add_float)(panel, rows);
}
void add_panel(const float* panel, const TokenRows<std::uint16_t>& rows) {
  TESSERA_DISPATCH(add_bfloat16)(panel, rows);
}
void sparse_lines(const SparseLines& lines, std::int64_t first, std::int64_t last, const float* numbers, const float* x,
                  float* y) {
  TESSERA_DISPATCH(sparse_lines)(lines, first, last, numbers, x, y);
}
void sparse_dots(const SparseLines& lines, std::int64_t first, std::int64_t last, const float* x, const float* y,
                 float* sums) {
  TESSERA_DISPATCH(sparse_dots)(lines, first, last, x, y, sums);
}

}  // namespace tessera::nn::kernels
#endif
