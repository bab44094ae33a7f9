#include "nn/kernels/score_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/cpu_dispatch.h"
#include "nn/kernels/float_math.h"
#include "nn/kernels/row_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/score_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {

constexpr float kHidden = -std::numeric_limits<float>::max();

TESSERA_INLINE float rounded_to_bfloat16(float x) {
  std::uint16_t narrow = 0;
  narrow_to(narrow, x);
  return widened(narrow);
}

/// Products become scores but for a factor, which is returned: the next pass applies it.
float make_scores(float* s, const ScoreRow& row) {
  if (row.softcap <= 0 && !row.key_position && !row.bias && !row.visible && row.scale > 0) return row.scale;
  const float scale = row.scale, cap = row.softcap, slope = row.slope;
  const std::int64_t first = row.first, last = row.last;
  if (cap > 0) {
    const float inner = scale / cap;
#pragma omp simd
    for (std::int64_t j = first; j < last; ++j) s[j] = cap * fast_tanh(s[j] * inner);
  } else if (scale != 1.0f) {
#pragma omp simd
    for (std::int64_t j = first; j < last; ++j) s[j] *= scale;
  }
  if (const float* place = row.key_position) {
    const float factor = row.bias_scale;
    if (row.bias_in_bfloat16) {
      const float narrow = rounded_to_bfloat16(slope);
#pragma omp simd
      for (std::int64_t j = first; j < last; ++j)
        s[j] += factor * rounded_to_bfloat16(narrow * rounded_to_bfloat16(place[j]));
    } else {
#pragma omp simd
      for (std::int64_t j = first; j < last; ++j) s[j] += factor * (slope * place[j]);
    }
  }
  if (const float* bias = row.bias) {
    if (row.sums_in_bfloat16) {
#pragma omp simd
      for (std::int64_t j = first; j < last; ++j) s[j] = rounded_to_bfloat16(rounded_to_bfloat16(s[j]) + bias[j]);
    } else {
#pragma omp simd
      for (std::int64_t j = first; j < last; ++j) s[j] += bias[j];
    }
  }
  if (const std::uint8_t* visible = row.visible) {
    for (std::int64_t j = first; j < last; ++j) s[j] = visible[j] ? s[j] : kHidden;
  }
  return 1.0f;
}

void softmax_gradient(const float* p, float* dp, float dot, float scale, std::int64_t n) {
#pragma omp simd
  for (std::int64_t j = 0; j < n; ++j) dp[j] = scale * p[j] * (dp[j] - dot);
}

/// The same where a bias takes part; `scale` comes after it.
void add_bias_gradient(const float* p, const float* dp, float dot, float* bias, std::int64_t n) {
#pragma omp simd
  for (std::int64_t j = 0; j < n; ++j) bias[j] += p[j] * (dp[j] - dot);
}

void softcap_gradient(const float* products, float* dp, const ScoreRow& row) {
  const float scale = row.scale, inner = row.scale / row.softcap;
#pragma omp simd
  for (std::int64_t j = row.first; j < row.last; ++j) {
    const float t = fast_tanh(products[j] * inner);
    dp[j] *= scale * (1.0f - t * t);
  }
}

void add_gathered(const float* from, const std::int32_t* places, float* to, std::int64_t n) {
#pragma omp simd
  for (std::int64_t j = 0; j < n; ++j) to[j] += from[places[j]];
}

void add_reversed(const float* from, float* to, std::int64_t n) {
#pragma omp simd
  for (std::int64_t j = 0; j < n; ++j) to[j] += from[-j];
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::nn::kernels {

HWY_EXPORT(add_gathered);
HWY_EXPORT(add_reversed);
HWY_EXPORT(make_scores);
HWY_EXPORT(add_bias_gradient);
HWY_EXPORT(softmax_gradient);
HWY_EXPORT(softcap_gradient);

namespace {

using Four = float __attribute__((vector_size(16)));

/// Rows of 4 x 4 elements.
struct Square {
  Four row[4];

  Square transposed() const {
    const auto low = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
    const auto high = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
    const auto low2 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
    const auto high2 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
    return {{__builtin_shufflevector(low, low2, 0, 1, 4, 5), __builtin_shufflevector(low, low2, 2, 3, 6, 7),
             __builtin_shufflevector(high, high2, 0, 1, 4, 5), __builtin_shufflevector(high, high2, 2, 3, 6, 7)}};
  }
};

Four load(const float* x) {
  Four v;
  std::memcpy(&v, x, sizeof v);
  return v;
}
void add(Four v, float* x) {
  v += load(x);
  std::memcpy(x, &v, sizeof v);
}

/// Calls square(r, c) for whole squares of 4 x 4, one(r, c) for the elements of the others.
template <class OfSquare, class OfElement>
void for_squares(std::int64_t rows, std::int64_t columns, const OfSquare& square, const OfElement& one) {
  const std::int64_t whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
  for (std::int64_t c = 0; c < whole_columns; c += 4)
    for (std::int64_t r = 0; r < whole_rows; r += 4) square(r, c);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c) one(r, c);
}

/// What a query that sees nothing attends to evenly.
ScoreRow blind(ScoreRow row) {
  if (!row.blind_sees_past) {
    row.first = 0;
    row.last = row.n;
  }
  return row;
}

void spread_evenly(float* s, const ScoreRow& row) {
  const ScoreRow even = blind(row);
  std::fill(s, s + row.n, 0.0f);
  std::fill(s + even.first, s + even.last, 1.0f / static_cast<float>(even.last - even.first));
}

bool sees_any(const ScoreRow& row) {
  if (row.hidden) return false;
  if (!row.visible) return row.last > row.first;
  return std::any_of(row.visible + row.first, row.visible + row.last, [](std::uint8_t v) { return v != 0; });
}

void clear_unseen(float* s, const ScoreRow& row) {
  std::fill(s, s + row.first, 0.0f);
  std::fill(s + row.last, s + row.n, 0.0f);
}

}  // namespace

RowSoftmax score_softmax(float* s, const ScoreRow& row) {
  if (!sees_any(row)) {
    spread_evenly(s, row);
    return {1.0f, std::numeric_limits<float>::infinity()};
  }
  const float factor = TESSERA_DISPATCH(make_scores)(s, row);
  float* seen = s + row.first;
  const std::int64_t n = row.last - row.first;
  const float top = factor * largest(seen, n);
  const float sum = exponentials(seen, seen, factor, top, n);
  clear_unseen(s, row);
  return {1.0f / sum, top + std::log(sum)};
}

float score_probabilities(float* s, float lse, const float* dp, const ScoreRow& row) {
  if (std::isinf(lse)) {
    spread_evenly(s, row);
    return dot(s, dp, row.n);
  }
  const float factor = TESSERA_DISPATCH(make_scores)(s, row);
  float* seen = s + row.first;
  const std::int64_t n = row.last - row.first;
  clear_unseen(s, row);
  return exponentials_dot(seen, seen, factor, lse, dp + row.first, n);
}

void add_gathered(const float* from, const std::int32_t* places, float* to, std::int64_t n) {
  TESSERA_DISPATCH(add_gathered)(from, places, to, n);
}

void add_reversed(const float* from, float* to, std::int64_t n) {
  TESSERA_DISPATCH(add_reversed)(from, to, n);
}

void add_columns(const float* const* from, std::int64_t columns, std::int64_t rows, float* to, std::int64_t stride) {
  for_squares(
      rows, columns,
      [&](std::int64_t r, std::int64_t c) {
        const float* const* x = from + c;
        const auto rows_of = Square{{load(x[0] + r), load(x[1] + r), load(x[2] + r), load(x[3] + r)}}.transposed();
        for (int i = 0; i < 4; ++i) add(rows_of.row[i], to + (r + i) * stride + c);
      },
      [&](std::int64_t r, std::int64_t c) { to[r * stride + c] += from[c][r]; });
}

void add_to_columns(const float* from, std::int64_t stride, std::int64_t rows, float* const* to, std::int64_t columns) {
  for_squares(
      rows, columns,
      [&](std::int64_t r, std::int64_t c) {
        const float* x = from + r * stride + c;
        const auto columns_of =
            Square{{load(x), load(x + stride), load(x + 2 * stride), load(x + 3 * stride)}}.transposed();
        for (int i = 0; i < 4; ++i) add(columns_of.row[i], to[c + i] + r);
      },
      [&](std::int64_t r, std::int64_t c) { to[c][r] += from[r * stride + c]; });
}

void score_backward(const float* p, const float* products, float* dp, float dot, const ScoreRow& given) {
  if (given.hidden) return std::fill(dp, dp + given.n, 0.0f);
  const ScoreRow row = sees_any(given) ? given : blind(given);
  const std::int64_t first = row.first;
  if (row.bias_gradient) TESSERA_DISPATCH(add_bias_gradient)
  (p + first, dp + first, dot, row.bias_gradient + first, row.last - first);
  TESSERA_DISPATCH(softmax_gradient)(p + first, dp + first, dot, row.softcap > 0 ? 1.0f : row.scale, row.last - first);
  if (row.softcap > 0) TESSERA_DISPATCH(softcap_gradient)(products, dp, row);
  clear_unseen(dp, row);
}

}  // namespace tessera::nn::kernels
#endif
