#pragma once
// GGUF's blocks as rows of bfloat16 (tensor::PanelCodec): what io::GgufBlock::dequantize() gives, rounded to the
// nearest bfloat16. Where a code has up to five bits, its values are a table in a register. Values below 2^-126 are
// zeros, as a product would take them.
#include <cstddef>
#include <cstdint>

namespace tessera::quant {

/// `count` blocks, one after the other, on one thread.
using GgufRows = void (*)(const std::byte* blocks, std::int64_t count, std::uint16_t* out);

/// For a number of io::GgufBlock; null where there is none, or the processor has no AVX512_BF16.
GgufRows gguf_rows(std::uint32_t type);

}  // namespace tessera::quant
