#pragma once
// Floats into the blocks of GGUF's quantised tensors: what io/gguf_blocks.h reads.
#include <cstddef>
#include <cstdint>

namespace tessera::io {

/// Of GgufBlock::elements values a block of GgufBlock::bytes.
using GgufEncode = void (*)(const float* values, std::byte* block);

/// Q8_0 rounds as the gguf package does; Q5_0, Q5_1, Q4_K, Q5_K and Q6_K search the scales with the smallest squared
/// error. Null for types that are not written.
GgufEncode gguf_encoder(std::uint32_t type);

}  // namespace tessera::io
