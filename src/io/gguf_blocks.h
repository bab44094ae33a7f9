#pragma once
// The block formats of GGUF's quantised tensors: how many elements and bytes a block has, and its values.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tessera::io {

struct GgufBlock {
  std::uint32_t type;     // the format's number
  const char* name;       // "Q4_K"
  std::int64_t elements;  // of one block
  std::int64_t bytes;
  /// Of `count` blocks, one after the other, `elements` floats each.
  void (*dequantize)(const std::byte* blocks, std::int64_t count, float* out);
  /// Elements [begin, begin + count) of a tensor whose blocks begin at `blocks`.
  void dequantize_elements(const std::byte* blocks, std::int64_t begin, std::int64_t count, float* out) const;
};

/// Scale and minimum j of 8, six bits each, in the 12 bytes of Q4_K and Q5_K.
inline std::pair<int, int> gguf_scale_and_min(const std::uint8_t* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | (s[j - 4] >> 6 << 4), s[j + 4] >> 4 | (s[j] >> 6 << 4)};
}

/// What the codes of IQ4_NL and IQ4_XS stand for, and those of MXFP4 (twice E2M1).
constexpr std::int8_t kGgufIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr std::int8_t kGgufMxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// Scale j of 8 of a block of IQ4_XS: a word of two high bits each, then low halves of bytes.
inline int gguf_iq4_xs_scale(const std::uint8_t* block, int j) {
  const int high = block[2] | block[3] << 8, low = block[4 + j / 2] >> j % 2 * 4 & 15;
  return (low | (high >> 2 * j & 3) << 4) - 32;
}

/// Half of the power of two that a block of MXFP4 has (E8M0).
inline float gguf_mxfp4_scale(std::uint8_t e) {
  return std::ldexp(1.0F, e - 128);
}

/// Null for numbers that are not a quantised type which is read here.
const GgufBlock* gguf_block(std::uint32_t type);

/// Also of known types that are not read; "an unknown type" for others.
const char* gguf_type_name(std::uint32_t type);

}  // namespace tessera::io
