#pragma once
// The bytes of a matrix of few bits, by bitsandbytes' forms: what a folder stores and a rank keeps.
#include <cstdint>

#include "families/quantization.h"

namespace tessera::estimate {

struct PackedBits {
  int bits = 4;               // 4: NF4 or FP4 in blocks of 64; 8: LLM.int8()
  bool double_quant = false;  // of 4 bits: the scales in 8 bits
  bool operator==(const PackedBits&) const = default;
};

/// What a folder's quantization_config says.
PackedBits bits_of(const families::Quantization& settings);

/// [rows, columns] with its statistics: 4.5, 4.13 or 8 bits an element.
std::int64_t packed_bytes(const PackedBits& how, std::int64_t rows, std::int64_t columns);

}  // namespace tessera::estimate
