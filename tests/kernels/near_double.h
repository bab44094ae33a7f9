#pragma once
// What the tests of kernels share: rows of numbers that look random, their bfloat16, and the error against double.
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace tessera::nn::kernels {

/// n numbers in (-scale, scale).
inline std::vector<float> waves(std::int64_t n, float step, float scale = 3.0f) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = scale * std::sin(step * static_cast<float>(i + 1));
  return x;
}

/// To the nearest, ties to even.
inline std::uint16_t to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
inline float to_float(float x) {
  return x;
}
inline float to_float(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

/// As T: float, or bfloat16 as its bits.
template <class T>
std::vector<T> row_of(const std::vector<float>& x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    std::vector<T> out;
    for (const float v : x) out.push_back(to_bfloat16(v));
    return out;
  }
}

/// What one rounding to T may change, relative; `computed` is allowed to the arithmetic before it.
template <class T>
double rounding(double computed) {
  return std::is_same_v<T, float> ? computed : 0x1p-8 + computed;
}

}  // namespace tessera::nn::kernels
