#include "nn/kernels/kernels.h"

#include <cmath>

#include "nn/kernels/row_sums.h"
#include "nn/kernels/simd.h"

namespace tessera::nn::kernels {
namespace {

inline float keep(const Mask& m, std::uint32_t index) {
  return tensor::random_bits(m.key, index) >= m.threshold ? m.scale : 0.0f;
}

}  // namespace

Mask make_mask(double p, tensor::RandomKey key) {
  Mask m{key, 0, 1.0f};
  if (p >= 1.0) return {key, 0, 0.0f};
  m.threshold = static_cast<std::uint32_t>(p * 0x1p32);
  m.scale = static_cast<float>(1.0 / (1.0 - p));
  return m;
}

TESSERA_CLONES void widen(const std::uint16_t* x, float* y, std::int64_t n) {
  constexpr std::int64_t kLine = 32;  // elements
  std::int64_t i = 0;
  for (; i + kLine <= n; i += kLine) {
    __builtin_prefetch(x + n + i);  // of the next row
#pragma omp simd
    for (std::int64_t k = i; k < i + kLine; ++k) y[k] = widened(x[k]);
  }
  for (; i < n; ++i) y[i] = widened(x[i]);
}

TESSERA_CLONES void narrow(const float* x, std::uint16_t* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) narrow_to(y[i], x[i]);
}

TESSERA_CLONES void scale_row(float* x, float scale, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] *= scale;
}

TESSERA_CLONES float rms_norm(const float* x, const float* w, float* y, std::int64_t n, float eps) {
  const float rstd = 1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = w[i] * (x[i] * rstd);
  return rstd;
}

TESSERA_CLONES void rms_norm_backward(const float* gy, const float* x, const float* w, float rstd, float* gx, float* gw,
                                      std::int64_t n) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t i = 0; i < n; ++i) dot += gy[i] * w[i] * x[i];
  const float c = dot * rstd * rstd / static_cast<float>(n);
  if (gx) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) gx[i] = rstd * (gy[i] * w[i] - x[i] * c);
  }
  if (gw) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) gw[i] += gy[i] * (x[i] * rstd);
  }
}

TESSERA_CLONES void dropout(const float* x, float* y, std::int64_t n, std::uint32_t first, const Mask& mask) {
  const Mask m = mask;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * keep(m, first + static_cast<std::uint32_t>(i));
}

TESSERA_CLONES void dropout_add(const float* r, const float* x, float* y, std::int64_t n, std::uint32_t first,
                                const Mask& mask) {
  const Mask m = mask;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = r[i] + x[i] * keep(m, first + static_cast<std::uint32_t>(i));
}

TESSERA_CLONES void relu_dropout(const float* x, float* y, std::int64_t n, std::uint32_t first, const Mask& mask) {
  const Mask m = mask;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float v = x[i] > 0 ? x[i] : 0.0f;
    y[i] = v * keep(m, first + static_cast<std::uint32_t>(i));
  }
}

TESSERA_CLONES void relu_dropout_backward(const float* gy, const float* y, float* gx, std::int64_t n, float scale) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) gx[i] = y[i] > 0 ? gy[i] * scale : 0.0f;
}

TESSERA_CLONES void softmax(float* s, const float* bias, std::int64_t n) {
  if (bias) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) s[i] += bias[i];
  }
  const float sum = exponentials(s, s, 1.0f, largest(s, n), n);
  scale_row(s, 1.0f / sum, n);
}

TESSERA_CLONES void softmax_backward(const float* p, float* dp, float* bias_grad, std::int64_t n) {
  const float shift = dot(p, dp, n);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) dp[i] = p[i] * (dp[i] - shift);
  if (bias_grad) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) bias_grad[i] += dp[i];
  }
}

float log_sum_exp(const float* x, std::int64_t n) {
  const float top = largest(x, n);
  return top + std::log(sum_of_exponentials(x, 1.0f, top, n));
}

TESSERA_CLONES void scaled_softmax(float* x, float lse, float scale, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] = scale * fast_exp(x[i] - lse);
}

TESSERA_CLONES void softcap(float* x, float cap, std::int64_t n) {
  const float inverse = 1.0f / cap;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] = cap * fast_tanh(x[i] * inverse);
}

TESSERA_CLONES void softcap_backward(const float* y, float* g, float cap, std::int64_t n) {
  const float inverse = 1.0f / cap;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float t = y[i] * inverse;
    g[i] *= 1.0f - t * t;
  }
}

std::int64_t argmax(const float* x, std::int64_t n) {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < n; ++i) {
    if (x[i] > x[best]) best = i;
  }
  return best;
}

}  // namespace tessera::nn::kernels
