#include "nn/score_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "nn/simd.h"

namespace tessera::nn::kernels {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::max();

TESSERA_INLINE float rounded_to_bfloat16(float x) {
  std::uint16_t narrow = 0;
  narrow_to(narrow, x);
  return widened(narrow);
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
  if (!row.visible) return row.last > row.first;
  return std::any_of(row.visible + row.first, row.visible + row.last, [](std::uint8_t v) { return v != 0; });
}

}  // namespace

// Free functions with external linkage, because target_clones does not take internal ones.

/// Products become scores but for a factor, which is returned: the next pass applies it.
TESSERA_CLONES float make_scores(float* s, const ScoreRow& row) {
  if (row.softcap <= 0 && !row.key_position && !row.visible && row.scale > 0) return row.scale;
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
  if (const std::uint8_t* visible = row.visible) {
    for (std::int64_t j = first; j < last; ++j) s[j] = visible[j] ? s[j] : kHidden;
  }
  return 1.0f;
}

/// Of factor * s; factor > 0.
TESSERA_CLONES float softmax_with_lse(float* s, float factor, std::int64_t first, std::int64_t last) {
  float top = kHidden;
#pragma omp simd reduction(max : top)
  for (std::int64_t j = first; j < last; ++j) top = s[j] > top ? s[j] : top;
  top *= factor;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = first; j < last; ++j) {
    const float d = s[j] * factor - top;
    const float e = d < -87.0f ? 0.0f : fast_exp(d);
    s[j] = e;
    sum += e;
  }
  const float scale = 1.0f / sum;
#pragma omp simd
  for (std::int64_t j = first; j < last; ++j) s[j] *= scale;
  return top + std::log(sum);
}

TESSERA_CLONES void exponentials(float* s, float factor, float lse, std::int64_t first, std::int64_t last) {
#pragma omp simd
  for (std::int64_t j = first; j < last; ++j) {
    const float d = s[j] * factor - lse;
    s[j] = d < -87.0f ? 0.0f : fast_exp(d);
  }
}

TESSERA_CLONES void softmax_gradient(const float* p, float* dp, const ScoreRow& row) {
  const std::int64_t first = row.first, last = row.last;
  const float scale = row.softcap > 0 ? 1.0f : row.scale;
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t j = first; j < last; ++j) dot += p[j] * dp[j];
#pragma omp simd
  for (std::int64_t j = first; j < last; ++j) dp[j] = scale * p[j] * (dp[j] - dot);
}

TESSERA_CLONES void softcap_gradient(const float* products, float* dp, const ScoreRow& row) {
  const float scale = row.scale, inner = row.scale / row.softcap;
#pragma omp simd
  for (std::int64_t j = row.first; j < row.last; ++j) {
    const float t = fast_tanh(products[j] * inner);
    dp[j] *= scale * (1.0f - t * t);
  }
}

namespace {

void score_gradient_within(const float* p, const float* products, float* dp, const ScoreRow& row) {
  softmax_gradient(p, dp, row);
  if (row.softcap > 0) softcap_gradient(products, dp, row);
  std::fill(dp, dp + row.first, 0.0f);
  std::fill(dp + row.last, dp + row.n, 0.0f);
}

}  // namespace

float score_softmax(float* s, const ScoreRow& row) {
  if (!sees_any(row)) {
    spread_evenly(s, row);
    return std::numeric_limits<float>::infinity();
  }
  const float factor = make_scores(s, row);
  const float lse = softmax_with_lse(s, factor, row.first, row.last);
  std::fill(s, s + row.first, 0.0f);
  std::fill(s + row.last, s + row.n, 0.0f);
  return lse;
}

void score_probabilities(float* s, float lse, const ScoreRow& row) {
  if (std::isinf(lse)) return spread_evenly(s, row);
  const float factor = make_scores(s, row);
  exponentials(s, factor, lse, row.first, row.last);
  std::fill(s, s + row.first, 0.0f);
  std::fill(s + row.last, s + row.n, 0.0f);
}

void score_backward(const float* p, const float* products, float* dp, const ScoreRow& row) {
  score_gradient_within(p, products, dp, sees_any(row) ? row : blind(row));
}

}  // namespace tessera::nn::kernels
