#pragma once
// The function behind tensor/rng.h, for kernels.
#include <cstdint>

namespace tessera::tensor {

/// What one draw (one dropout mask, one initialised parameter) is keyed by.
struct RandomKey {
  std::uint32_t a = 0, b = 0;
};

/// 32 uniformly distributed bits (two rounds of a multiply-xorshift hash; passes for masks and initial values, not for
/// secrets).
constexpr std::uint32_t random_bits(RandomKey key, std::uint32_t index) noexcept {
  std::uint32_t x = index * 0x9E3779B9u + key.a;
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x += key.b;
  x *= 0x846CA68Bu;
  x ^= x >> 16;
  x *= 0xC2B2AE35u;
  return x ^ (x >> 15);
}

}  // namespace tessera::tensor
