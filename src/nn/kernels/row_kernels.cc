#include "nn/kernels/row_kernels.h"

#include <cmath>

#include "base/cpu_dispatch.h"
#include "nn/kernels/float_math.h"
#include "nn/kernels/row_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/row_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {

TESSERA_INLINE float keep(const Mask& m, std::uint32_t index) {
  return tensor::random_bits(m.key, index) >= m.threshold ? m.scale : 0.0f;
}

void widen(const std::uint16_t* x, float* y, std::int64_t n) {
  constexpr std::int64_t kLine = 32;  // elements
  std::int64_t i = 0;
  for (; i + kLine <= n; i += kLine) {
    __builtin_prefetch(x + n + i);  // of the next row
#pragma omp simd
    for (std::int64_t k = i; k < i + kLine; ++k) y[k] = widened(x[k]);
  }
  for (; i < n; ++i) y[i] = widened(x[i]);
}

void narrow(const float* x, std::uint16_t* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) narrow_to(y[i], x[i]);
}

void round_to_float16(float* x, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] = rounded_to_float16(x[i]);
}

void round_to_bfloat16(float* x, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint16_t y;
    narrow_to(y, x[i]);
    x[i] = widened(y);
  }
}

void scale_row(float* x, float scale, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] *= scale;
}

template <class T>
TESSERA_INLINE void add_rows(const T* a, const T* b, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) narrow_to(y[i], widened(a[i]) + widened(b[i]));
}
void sum_float32(const float* a, const float* b, float* y, std::int64_t n) {
  add_rows(a, b, y, n);
}
void sum_bfloat16(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* y, std::int64_t n) {
  add_rows(a, b, y, n);
}

template <class T>
TESSERA_INLINE void add_scaled_row(const T* x, float scale, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    T product;
    narrow_to(product, scale * widened(x[i]));
    narrow_to(y[i], widened(y[i]) + widened(product));
  }
}
void add_scaled_float32(const float* x, float scale, float* y, std::int64_t n) {
  add_scaled_row(x, scale, y, n);
}
void add_scaled_bfloat16(const std::uint16_t* x, float scale, std::uint16_t* y, std::int64_t n) {
  add_scaled_row(x, scale, y, n);
}

template <class T>
TESSERA_INLINE float scale_and_dot_row(const T* x, const T* z, float scale, T* y, std::int64_t n) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = widened(x[i]);
    dot += value * widened(z[i]);
    narrow_to(y[i], scale * value);
  }
  return dot;
}
float scale_and_dot_float32(const float* x, const float* z, float scale, float* y, std::int64_t n) {
  return scale_and_dot_row(x, z, scale, y, n);
}
float scale_and_dot_bfloat16(const std::uint16_t* x, const std::uint16_t* z, float scale, std::uint16_t* y,
                             std::int64_t n) {
  return scale_and_dot_row(x, z, scale, y, n);
}

void dropout(const float* x, float* y, std::int64_t n, std::uint32_t first, const Mask& mask) {
  const Mask m = mask;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * keep(m, first + static_cast<std::uint32_t>(i));
}

void dropout_add(const float* r, const float* x, float* y, std::int64_t n, std::uint32_t first, const Mask& mask) {
  const Mask m = mask;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = r[i] + x[i] * keep(m, first + static_cast<std::uint32_t>(i));
}

void relu_dropout(const float* x, float* y, std::int64_t n, std::uint32_t first, const Mask& mask) {
  const Mask m = mask;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float v = x[i] > 0 ? x[i] : 0.0f;
    y[i] = v * keep(m, first + static_cast<std::uint32_t>(i));
  }
}

void relu_dropout_backward(const float* gy, const float* y, float* gx, std::int64_t n, float scale) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) gx[i] = y[i] > 0 ? gy[i] * scale : 0.0f;
}

void scaled_softmax(float* x, float lse, float scale, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] = scale * fast_exp(x[i] - lse);
}

void softcap(float* x, float cap, std::int64_t n) {
  const float inverse = 1.0f / cap;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] = cap * fast_tanh(x[i] * inverse);
}

void softcap_backward(const float* y, float* g, float cap, std::int64_t n) {
  const float inverse = 1.0f / cap;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float t = y[i] * inverse;
    g[i] *= 1.0f - t * t;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::nn::kernels {

HWY_EXPORT(widen);
HWY_EXPORT(narrow);
HWY_EXPORT(round_to_bfloat16);
HWY_EXPORT(round_to_float16);
HWY_EXPORT(scale_row);
HWY_EXPORT(sum_float32);
HWY_EXPORT(sum_bfloat16);
HWY_EXPORT(add_scaled_float32);
HWY_EXPORT(add_scaled_bfloat16);
HWY_EXPORT(scale_and_dot_float32);
HWY_EXPORT(scale_and_dot_bfloat16);
HWY_EXPORT(dropout);
HWY_EXPORT(dropout_add);
HWY_EXPORT(relu_dropout);
HWY_EXPORT(relu_dropout_backward);
HWY_EXPORT(scaled_softmax);
HWY_EXPORT(softcap);
HWY_EXPORT(softcap_backward);

Mask make_mask(double p, tensor::RandomKey key) {
  Mask m{key, 0, 1.0f};
  if (p >= 1.0) return {key, 0, 0.0f};
  m.threshold = static_cast<std::uint32_t>(p * 0x1p32);
  m.scale = static_cast<float>(1.0 / (1.0 - p));
  return m;
}

void widen(const std::uint16_t* x, float* y, std::int64_t n) {
  TESSERA_DISPATCH(widen)(x, y, n);
}
void narrow(const float* x, std::uint16_t* y, std::int64_t n) {
  TESSERA_DISPATCH(narrow)(x, y, n);
}
void round_to_bfloat16(float* x, std::int64_t n) {
  TESSERA_DISPATCH(round_to_bfloat16)(x, n);
}
void round_to_float16(float* x, std::int64_t n) {
  TESSERA_DISPATCH(round_to_float16)(x, n);
}
void scale_row(float* x, float scale, std::int64_t n) {
  TESSERA_DISPATCH(scale_row)(x, scale, n);
}
void add(const float* a, const float* b, float* y, std::int64_t n) {
  TESSERA_DISPATCH(sum_float32)(a, b, y, n);
}
void add(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* y, std::int64_t n) {
  TESSERA_DISPATCH(sum_bfloat16)(a, b, y, n);
}
void add_scaled(const float* x, float scale, float* y, std::int64_t n) {
  TESSERA_DISPATCH(add_scaled_float32)(x, scale, y, n);
}
void add_scaled(const std::uint16_t* x, float scale, std::uint16_t* y, std::int64_t n) {
  TESSERA_DISPATCH(add_scaled_bfloat16)(x, scale, y, n);
}
float scale_and_dot(const float* x, const float* z, float scale, float* y, std::int64_t n) {
  return TESSERA_DISPATCH(scale_and_dot_float32)(x, z, scale, y, n);
}
float scale_and_dot(const std::uint16_t* x, const std::uint16_t* z, float scale, std::uint16_t* y, std::int64_t n) {
  return TESSERA_DISPATCH(scale_and_dot_bfloat16)(x, z, scale, y, n);
}
void dropout(const float* x, float* y, std::int64_t n, std::uint32_t first, const Mask& mask) {
  TESSERA_DISPATCH(dropout)(x, y, n, first, mask);
}
void dropout_add(const float* r, const float* x, float* y, std::int64_t n, std::uint32_t first, const Mask& mask) {
  TESSERA_DISPATCH(dropout_add)(r, x, y, n, first, mask);
}
void relu_dropout(const float* x, float* y, std::int64_t n, std::uint32_t first, const Mask& mask) {
  TESSERA_DISPATCH(relu_dropout)(x, y, n, first, mask);
}
void relu_dropout_backward(const float* gy, const float* y, float* gx, std::int64_t n, float scale) {
  TESSERA_DISPATCH(relu_dropout_backward)(gy, y, gx, n, scale);
}
void scaled_softmax(float* x, float lse, float scale, std::int64_t n) {
  TESSERA_DISPATCH(scaled_softmax)(x, lse, scale, n);
}
void softcap(float* x, float cap, std::int64_t n) {
  TESSERA_DISPATCH(softcap)(x, cap, n);
}
void softcap_backward(const float* y, float* g, float cap, std::int64_t n) {
  TESSERA_DISPATCH(softcap_backward)(y, g, cap, n);
}

float log_sum_exp(const float* x, std::int64_t n) {
  const float top = largest(x, n);
  return top + std::log(sum_of_exponentials(x, 1.0f, top, n));
}

std::int64_t argmax(const float* x, std::int64_t n) {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < n; ++i) {
    if (x[i] > x[best]) best = i;
  }
  return best;
}

}  // namespace tessera::nn::kernels
#endif
