#pragma once
// Block-wise quantisation as bitsandbytes does it: a block of values is scaled by its largest magnitude (absmax), and
// each takes the code whose value is nearest. Loops over memory, on one thread; equal bytes on every processor.
#include <cstdint>

#include "quant/code_maps.h"
#include "quant/encode_kernels.h"

namespace tessera::quant {

/// How values in [-1, 1] take codes of four bits (encode_kernels.h).
const FourBitSteps& four_bit_steps(FourBitType type);
/// What values of four bits are divided by at least, as in bitsandbytes.
inline constexpr float kLeastScale = 1e-38f;

/// How many blocks `numel` elements have; the last may have fewer elements.
constexpr std::int64_t blocks_of(std::int64_t numel, std::int64_t block) {
  return (numel + block - 1) / block;
}

/// max |x| of each block: blocks_of(numel, block) values.
void block_absmax(const float* x, std::int64_t numel, std::int64_t block, float* absmax);

/// The same for codes of four bits: of a last block that is not whole, bitsandbytes stores at least 1e-38.
void four_bit_absmax(const float* x, std::int64_t numel, std::int64_t block, float* absmax);
/// Codes of four bits, (numel + 1) / 2 bytes, the first of two in the high half; after an odd number the code of zero.
/// Values are multiplied by the inverse of absmax, those of a last block that is not whole are divided by it. A value
/// half-way between two takes the lower one; FP4's two codes for zero are 0 up to zero and 8 above, as on CPUs.
void encode_four_bit(FourBitType type, const float* x, std::int64_t numel, std::int64_t block, const float* absmax,
                     std::uint8_t* codes);
/// value of the code * absmax of the block, for elements [begin, begin + numel) of the matrix that `codes` and `absmax`
/// belong to.
void decode_four_bit(FourBitType type, const std::uint8_t* codes, const float* absmax, std::int64_t block,
                     std::int64_t begin, std::int64_t numel, float* out);

/// `numel` codes of four bits in each of some rows, which are `stride` bytes apart. scales: for each `block` of a row's
/// codes, from its first one on, row after row.
struct FourBitRows {
  const std::uint8_t* codes;
  std::int64_t stride;
  const float* scales;
  std::int64_t block, numel, rows;
};
/// The same for rows of whole blocks: out's are `stride` floats apart.
void decode_four_bit_rows(FourBitType type, const FourBitRows& x, float* out, std::int64_t stride);

/// Codes of eight bits of a whole matrix, with the absmax of each block.
struct DynamicCodes {
  const std::uint8_t* codes;
  const float* absmax;
  std::int64_t block;
};
/// Codes of eight bits of the dynamic map, with the absmax of each block. Codes of a block of zeros are 0.
void encode_dynamic(bool with_signs, const float* x, std::int64_t numel, std::int64_t block, float* absmax,
                    std::uint8_t* codes);
void decode_dynamic(bool with_signs, const DynamicCodes& matrix, std::int64_t begin, std::int64_t numel, float* out);

/// The same for (a part of) one block, whose absmax is known.
void encode_dynamic_block(bool with_signs, const float* x, std::int64_t numel, float absmax, std::uint8_t* codes);
void decode_dynamic_block(bool with_signs, const std::uint8_t* codes, std::int64_t numel, float absmax, float* out);

}  // namespace tessera::quant
