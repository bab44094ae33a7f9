#pragma once
// bitsandbytes' 4-bit weights as a codec: codes, absmax, and with double quantisation the absmax in eight bits with
// statistics of their own. Blocks run over the row-major matrix, across rows.
#include "quant/code_maps.h"
#include "tessera/tensor/codec.h"

namespace tessera::quant {

struct FourBitSettings {
  FourBitType type = FourBitType::kNf4;
  std::int64_t block = 64;  // elements that share an absmax: even
  /// Double quantisation: absmax less their mean over the matrix (nested_offset), in codes of the dynamic map.
  bool nested = false;
  std::int64_t nested_block = 256;  // absmax that share a nested_absmax
};

/// Blocks that bitsandbytes has: 32, 64, ... 4096 elements.
bool is_four_bit_block(std::int64_t numel);

/// Fields: codes uint8 [ceil(n / 2), 1]; absmax float32 [blocks], or nested: absmax uint8 [blocks], nested_absmax
/// float32 [ceil(blocks / nested_block)], nested_offset float32 [1]. ConfigError for blocks that bitsandbytes lacks.
std::shared_ptr<const tensor::Codec> four_bit_codec(const FourBitSettings& settings);

/// The statistics of a matrix whose absmax are known. mean: of `count` values, in an order that no number of threads
/// changes.
float mean_of(const float* values, std::int64_t count);
/// nested_absmax: blocks_of(count, nested_block) values.
void encode_absmax(const FourBitSettings& settings, const float* absmax, std::int64_t count, float offset,
                   float* nested_absmax, std::uint8_t* codes);

}  // namespace tessera::quant
