#pragma once
// Layer norm and RMS norm of a row and their gradients, statistics in float32; the row stays in the first cache. Rows
// of float32, or bfloat16 (as its bits) that is converted in registers. Callers divide the work among threads.
#include <cstdint>

namespace tessera::nn::kernels {

struct Moments {
  float mean, rstd;
};

/// weight, bias: [n] float32, null stands for ones and zeros.
template <class T>
struct LayerNormRow {
  const T* x;
  const float *weight, *bias;
  T* y;
  std::int64_t n;
  float eps;
};

/// gy: of the result. Written: gx; added to: weight_gradient and bias_gradient. Each of the three may be null.
template <class T>
struct LayerNormGradientRow {
  const T *gy, *x;
  const float* weight;
  Moments moments;
  T* gx;
  float *weight_gradient, *bias_gradient;
  std::int64_t n;
};

Moments layer_norm(const LayerNormRow<float>& row);
Moments layer_norm(const LayerNormRow<std::uint16_t>& row);
void layer_norm_gradient(const LayerNormGradientRow<float>& row);
void layer_norm_gradient(const LayerNormGradientRow<std::uint16_t>& row);

/// y = weight * x * rstd.
template <class T>
struct RmsNormRow {
  const T* x;
  const float* weight;
  T* y;
  std::int64_t n;
  float eps;
};

/// gy: of the result. Written: gx; added to: weight_gradient. Both may be null.
template <class T>
struct RmsNormGradientRow {
  const T *gy, *x;
  const float* weight;
  float rstd;
  T* gx;
  float* weight_gradient;
  std::int64_t n;
};

/// Returns rstd, 1 / sqrt(mean(x^2) + eps).
float rms_norm(const RmsNormRow<float>& row);
float rms_norm(const RmsNormRow<std::uint16_t>& row);
void rms_norm_gradient(const RmsNormGradientRow<float>& row);
void rms_norm_gradient(const RmsNormGradientRow<std::uint16_t>& row);

/// sums += x, n elements.
void add_row(const float* x, float* sums, std::int64_t n);
void add_row(const std::uint16_t* x, float* sums, std::int64_t n);

}  // namespace tessera::nn::kernels
