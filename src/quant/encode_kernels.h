#pragma once
// Values as codes of a few bits, in vectors (base/cpu_dispatch.h). Loops over memory, on one thread; equal bytes on
// every processor.
#include <array>
#include <cstdint>

namespace tessera::quant {

/// How a value from -1 to 1 takes a code of four bits: `first`, and for each bound that it exceeds the bits of
/// `changes` flipped.
struct FourBitSteps {
  std::array<float, 15> bounds{};
  std::uint32_t first = 0;
  std::array<std::uint32_t, 15> changes{};
};

/// max |x|; NaN if any is.
float largest_magnitude(const float* x, std::int64_t numel);

/// Two codes a byte, the first in the high half, of x[i] * factor. numel: even.
void four_bit_codes(const FourBitSteps& steps, const float* x, std::int64_t numel, float factor, std::uint8_t* codes);

/// x[i], rounded to float16, times `factor`, rounded half to even: its last eight bits, of NaN zeros.
void int8_codes(const float* x, std::int64_t numel, float factor, std::int8_t* codes);

}  // namespace tessera::quant
