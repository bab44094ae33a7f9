#pragma once
// A block format of GGUF as a codec: the bytes of a file's tensor are the codes, whose blocks hold their own scales.
#include <memory>

#include "io/gguf_blocks.h"
#include "tessera/tensor/codec.h"

namespace tessera::quant {

/// Field: codes uint8 [bytes], of a matrix whose rows are whole blocks. Only read here.
std::shared_ptr<const tensor::Codec> gguf_codec(const io::GgufBlock& block);

}  // namespace tessera::quant
