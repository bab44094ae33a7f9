#pragma once
// Functions of one float that loops over rows call, and that compilers make vector instructions of: conversions of
// bfloat16, exponential, tanh, error function.
#include <bit>
#include <cstdint>

// Part of the loop that calls it: compiled with the loop, for each of its instruction sets.
#define TESSERA_INLINE inline __attribute__((always_inline))

namespace tessera::nn::kernels {

TESSERA_INLINE float widened(float x) {
  return x;
}
/// bfloat16, as its bits.
TESSERA_INLINE float widened(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

struct Float16 {
  std::uint16_t bits;
};
TESSERA_INLINE float widened(Float16 x) {
  const std::uint32_t shifted = (x.bits & 0x7FFFU) << 13, special = shifted >= 0x7C00U << 13 ? 0x7F800000U : 0;
  const auto value = std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted) * 0x1p112f);
  return std::bit_cast<float>(value | special | (x.bits & 0x8000U) << 16);
}

TESSERA_INLINE void narrow_to(float& y, float x) {
  y = x;
}
/// To the nearest bfloat16, ties to even.
TESSERA_INLINE void narrow_to(std::uint16_t& y, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  y = static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}

/// The nearest float16, ties to even.
TESSERA_INLINE float rounded_to_float16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x), magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t normal = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u)) & ~0x1FFFu;
  const float small = (std::bit_cast<float>(magnitude) + 0.5f) - 0.5f;  // multiples of 2^-24, below 2^-14
  std::uint32_t out = magnitude < 0x38800000u ? std::bit_cast<std::uint32_t>(small) : normal;
  out = out > 0x477FE000u ? 0x7F800000u : out;  // beyond 65504
  out = magnitude > 0x7F800000u ? 0x7FC00000u : out;
  return std::bit_cast<float>((bits & 0x80000000u) | out);
}

// exp for x <= ~88, relative error below 2e-7: 2^k times a degree-6 polynomial on [-ln2/2, ln2/2] (Cephes' constants).
TESSERA_INLINE float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the low bits hold the nearest integer
  const float k = shifted - 12582912.0f;
  float r = x - k * 0.693359375f;
  r = r + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((std::bit_cast<std::int32_t>(shifted) - 0x4B400000 + 127) << 23);
}

// Relative error below 3e-7 (Cephes' polynomial where the exponential would cancel).
TESSERA_INLINE float fast_tanh(float x) {
  const float a = x < 0 ? -x : x;
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float small = p * z * x + x;
  const float e = fast_exp(2.0f * (a < 20.0f ? a : 20.0f));
  const float large = 1.0f - 2.0f / (e + 1.0f);
  return a < 0.625f ? small : (x < 0 ? -large : large);
}

// Relative error below 5e-7: a quotient of polynomials on [-3.83, 3.83], outside of which it is 1 to float32's last bit
// (the coefficients of XLA's and Eigen's erf).
TESSERA_INLINE float fast_erf(float x) {
  constexpr float kEnd = 3.832506856900711f;
  x = x < -kEnd ? -kEnd : x;
  x = x > kEnd ? kEnd : x;
  const float z = x * x;
  float p = 0.00022905065861350646f;
  p = p * z + 0.0034082910107109506f;
  p = p * z + 0.050955695062380861f;
  p = p * z + 0.18520832239976145f;
  p = p * z + 1.128379143519084f;
  float q = -1.1791602954361697e-7f;
  q = q * z + 0.000023547966471313185f;
  q = q * z + 0.0010179625278914885f;
  q = q * z + 0.014070470171167667f;
  q = q * z + 0.11098505178285362f;
  q = q * z + 0.49746925110067538f;
  q = q * z + 1.0f;
  return x * p / q;
}

}  // namespace tessera::nn::kernels
