#include "nn/kernels/norm_kernels.h"

#include <cmath>

#include "base/cpu_dispatch.h"
#include "nn/kernels/float_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/norm_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {

template <class T>
TESSERA_INLINE Moments moments_of(const T* x, std::int64_t n, float eps) {
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += widened(x[i]);
  const float mean = sum / static_cast<float>(n);
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < n; ++i) {
    const float d = widened(x[i]) - mean;
    squares += d * d;
  }
  return {mean, 1.0f / std::sqrt(squares / static_cast<float>(n) + eps)};
}

template <class T>
TESSERA_INLINE Moments norm_row(const LayerNormRow<T>& row) {
  const T* x = row.x;
  T* y = row.y;
  const float *w = row.weight, *b = row.bias;
  const auto m = moments_of(x, row.n, row.eps);
  const float mean = m.mean, rstd = m.rstd;
  if (w && b) {
#pragma omp simd
    for (std::int64_t i = 0; i < row.n; ++i) narrow_to(y[i], (widened(x[i]) - mean) * rstd * w[i] + b[i]);
  } else {
    for (std::int64_t i = 0; i < row.n; ++i)
      narrow_to(y[i], (widened(x[i]) - mean) * rstd * (w ? w[i] : 1.0f) + (b ? b[i] : 0.0f));
  }
  return m;
}

template <bool kWeight, class T>
TESSERA_INLINE void input_gradient(const LayerNormGradientRow<T>& row) {
  const T *gy = row.gy, *x = row.x;
  const float* w = row.weight;
  T* gx = row.gx;
  const float mean = row.moments.mean, rstd = row.moments.rstd;
  float sum = 0, with_x = 0;
#pragma omp simd reduction(+ : sum, with_x)
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float g = kWeight ? widened(gy[i]) * w[i] : widened(gy[i]);
    sum += g;
    with_x += g * ((widened(x[i]) - mean) * rstd);
  }
  const float a = sum / static_cast<float>(row.n), c = with_x / static_cast<float>(row.n);
#pragma omp simd
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float g = kWeight ? widened(gy[i]) * w[i] : widened(gy[i]);
    narrow_to(gx[i], rstd * (g - a - (widened(x[i]) - mean) * rstd * c));
  }
}

template <class T>
TESSERA_INLINE void gradient_row(const LayerNormGradientRow<T>& row) {
  if (row.gx) row.weight ? input_gradient<true>(row) : input_gradient<false>(row);
  const T *gy = row.gy, *x = row.x;
  const float mean = row.moments.mean, rstd = row.moments.rstd;
  float *gw = row.weight_gradient, *gb = row.bias_gradient;
  if (gw) {
#pragma omp simd
    for (std::int64_t i = 0; i < row.n; ++i) gw[i] += widened(gy[i]) * ((widened(x[i]) - mean) * rstd);
  }
  if (gb) {
#pragma omp simd
    for (std::int64_t i = 0; i < row.n; ++i) gb[i] += widened(gy[i]);
  }
}

template <class T>
TESSERA_INLINE float rms_norm_row(const RmsNormRow<T>& row) {
  const T* x = row.x;
  const float* w = row.weight;
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < row.n; ++i) squares += widened(x[i]) * widened(x[i]);
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(row.n) + row.eps);
#pragma omp simd
  for (std::int64_t i = 0; i < row.n; ++i) narrow_to(row.y[i], w[i] * (widened(x[i]) * rstd));
  return rstd;
}

template <class T>
TESSERA_INLINE void rms_gradient_row(const RmsNormGradientRow<T>& row) {
  const T *gy = row.gy, *x = row.x;
  const float *w = row.weight, rstd = row.rstd;
  if (float* gw = row.weight_gradient) {
#pragma omp simd
    for (std::int64_t i = 0; i < row.n; ++i) gw[i] += widened(gy[i]) * (widened(x[i]) * rstd);
  }
  T* gx = row.gx;
  if (!gx) return;
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t i = 0; i < row.n; ++i) dot += widened(gy[i]) * w[i] * widened(x[i]);
  const float c = dot * rstd * rstd / static_cast<float>(row.n);
#pragma omp simd
  for (std::int64_t i = 0; i < row.n; ++i) narrow_to(gx[i], rstd * (widened(gy[i]) * w[i] - widened(x[i]) * c));
}

template <class T>
TESSERA_INLINE void add(const T* x, float* sums, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) sums[i] += widened(x[i]);
}

Moments layer_norm_float(const LayerNormRow<float>& row) {
  return norm_row(row);
}
Moments layer_norm_bfloat16(const LayerNormRow<std::uint16_t>& row) {
  return norm_row(row);
}
void gradient_float(const LayerNormGradientRow<float>& row) {
  gradient_row(row);
}
void gradient_bfloat16(const LayerNormGradientRow<std::uint16_t>& row) {
  gradient_row(row);
}
float rms_norm_float(const RmsNormRow<float>& row) {
  return rms_norm_row(row);
}
float rms_norm_bfloat16(const RmsNormRow<std::uint16_t>& row) {
  return rms_norm_row(row);
}
void rms_gradient_float(const RmsNormGradientRow<float>& row) {
  rms_gradient_row(row);
}
void rms_gradient_bfloat16(const RmsNormGradientRow<std::uint16_t>& row) {
  rms_gradient_row(row);
}
void add_float(const float* x, float* sums, std::int64_t n) {
  add(x, sums, n);
}
void add_bfloat16(const std::uint16_t* x, float* sums, std::int64_t n) {
  add(x, sums, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::nn::kernels {

HWY_EXPORT(layer_norm_float);
HWY_EXPORT(layer_norm_bfloat16);
HWY_EXPORT(gradient_float);
HWY_EXPORT(gradient_bfloat16);
HWY_EXPORT(rms_norm_float);
HWY_EXPORT(rms_norm_bfloat16);
HWY_EXPORT(rms_gradient_float);
HWY_EXPORT(rms_gradient_bfloat16);
HWY_EXPORT(add_float);
HWY_EXPORT(add_bfloat16);

Moments layer_norm(const LayerNormRow<float>& row) {
  return TESSERA_DISPATCH(layer_norm_float)(row);
}
Moments layer_norm(const LayerNormRow<std::uint16_t>& row) {
  return TESSERA_DISPATCH(layer_norm_bfloat16)(row);
}
void layer_norm_gradient(const LayerNormGradientRow<float>& row) {
  TESSERA_DISPATCH(gradient_float)(row);
}
void layer_norm_gradient(const LayerNormGradientRow<std::uint16_t>& row) {
  TESSERA_DISPATCH(gradient_bfloat16)(row);
}
float rms_norm(const RmsNormRow<float>& row) {
  return TESSERA_DISPATCH(rms_norm_float)(row);
}
float rms_norm(const RmsNormRow<std::uint16_t>& row) {
  return TESSERA_DISPATCH(rms_norm_bfloat16)(row);
}
void rms_norm_gradient(const RmsNormGradientRow<float>& row) {
  TESSERA_DISPATCH(rms_gradient_float)(row);
}
void rms_norm_gradient(const RmsNormGradientRow<std::uint16_t>& row) {
  TESSERA_DISPATCH(rms_gradient_bfloat16)(row);
}
void add_row(const float* x, float* sums, std::int64_t n) {
  TESSERA_DISPATCH(add_float)(x, sums, n);
}
void add_row(const std::uint16_t* x, float* sums, std::int64_t n) {
  TESSERA_DISPATCH(add_bfloat16)(x, sums, n);
}

}  // namespace tessera::nn::kernels
#endif
