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
  /// Writes `elements` floats.
  void (*dequantize)(const std::byte* block, float* out);
};

/// Null for numbers that are not a quantised type which is read here.
const GgufBlock* gguf_block(std::uint32_t type);

/// "IQ2_XXS" and the like for known numbers that are not read, "type 99" for others.
const char* gguf_type_name(std::uint32_t type);

}  // namespace tessera::io
