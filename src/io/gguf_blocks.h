#pragma once
// The block formats of GGUF's quantised tensors: how many elements and bytes a block has, and its values.
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

/// Null for numbers that are not a quantised type which is read here.
const GgufBlock* gguf_block(std::uint32_t type);

/// "IQ2_XXS" and the like for known numbers that are not read, "type 99" for others.
const char* gguf_type_name(std::uint32_t type);

}  // namespace tessera::io
