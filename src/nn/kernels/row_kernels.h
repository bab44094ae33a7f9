#pragma once
// Loops over rows of float32, by the processor's level (base/cpu_level.h). Callers divide the work among threads.
#include <cstdint>

#include "tensor/random_bits.h"

namespace tessera::nn::kernels {

/// A dropout mask of one row: element i is kept when random_bits(key, i) >= threshold, and scaled.
struct Mask {
  tensor::RandomKey key;
  std::uint32_t threshold = 0;  // p * 2^32
  float scale = 1.0f;           // 1 / (1 - p), 0 when p is 1
};
Mask make_mask(double p, tensor::RandomKey key);

/// bfloat16 (as its bits) to float32, and back to the nearest, ties to even.
void widen(const std::uint16_t* x, float* y, std::int64_t n);
void narrow(const float* x, std::uint16_t* y, std::int64_t n);
/// There and back, in place.
void round_to_bfloat16(float* x, std::int64_t n);
void round_to_float16(float* x, std::int64_t n);

/// x *= scale.
void scale_row(float* x, float scale, std::int64_t n);
/// y = a + b; of bfloat16 rounded.
void add(const float* a, const float* b, float* y, std::int64_t n);
void add(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* y, std::int64_t n);
/// y += scale * x; of bfloat16 the product is rounded, and then the sum.
void add_scaled(const float* x, float scale, float* y, std::int64_t n);
void add_scaled(const std::uint16_t* x, float scale, std::uint16_t* y, std::int64_t n);
/// y = scale * x; returns the sum of x[i] * z[i].
float scale_and_dot(const float* x, const float* z, float scale, float* y, std::int64_t n);
float scale_and_dot(const std::uint16_t* x, const std::uint16_t* z, float scale, std::uint16_t* y, std::int64_t n);
/// y = mask(x); `first` is the index of x[0] in the mask. In place allowed.
void dropout(const float* x, float* y, std::int64_t n, std::uint32_t first, const Mask& mask);
/// y = r + mask(x).
void dropout_add(const float* r, const float* x, float* y, std::int64_t n, std::uint32_t first, const Mask& mask);
/// y = mask(max(x, 0)).
void relu_dropout(const float* x, float* y, std::int64_t n, std::uint32_t first, const Mask& mask);
/// gx = gy * scale where y > 0.
void relu_dropout_backward(const float* gy, const float* y, float* gx, std::int64_t n, float scale);

/// Returns log(sum(exp(x))).
float log_sum_exp(const float* x, std::int64_t n);
/// x = scale * exp(x - lse), in place.
void scaled_softmax(float* x, float lse, float scale, std::int64_t n);
/// x = cap * tanh(x / cap), in place; and the gradient, g *= 1 - (y / cap)^2 for the capped y.
void softcap(float* x, float cap, std::int64_t n);
void softcap_backward(const float* y, float* g, float cap, std::int64_t n);
std::int64_t argmax(const float* x, std::int64_t n);

}  // namespace tessera::nn::kernels
