#pragma once
// The block formats of GGUF's quantised tensors: how many elements and bytes a block has, and its values.
#include <cstddef>
#include <cstdint>
#include <optional>

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

/// Null for numbers that are not a quantised type which is read here.
const GgufBlock* gguf_block(std::uint32_t type);

/// "IQ2_XXS" and the like for known numbers that are not read, "type 99" for others.
const char* gguf_type_name(std::uint32_t type);

}  // namespace tessera::io
