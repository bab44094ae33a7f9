#pragma once
// Products of a few rows of bfloat16 with the 4-bit codes of GPTQ and AWQ (grouped_codec.h), whose words lie by inputs:
// codes are small numbers, which bfloat16 holds, so that the words of 16 outputs become factors in registers, and a
// group's scale and zero point come after its sum: scale * (sum of x code - zero * sum of x). Weights are not rounded.
#include <cstdint>

#include "quant/grouped_codec.h"

namespace tessera::quant {

/// This processor has the instructions (AVX512_BF16); without them grouped_product() may not be called.
bool has_grouped_products();

constexpr std::int64_t kMostGroupedRows = 8;

struct GroupedProduct {
  WordLayout layout;
  bool zeros_less_one, scales_are_half;  // else bfloat16
  std::int64_t rows, columns;            // outputs, a multiple of 8; inputs
  std::int64_t group_size;               // a multiple of 8
  const std::int32_t *words, *zeros;
  const std::uint16_t* scales;
  const std::uint16_t* x;  // [few, columns], x_stride elements apart
  std::int64_t few, x_stride;
};
/// On one thread. y: of outputs [first, first + count), row by row, `stride` elements apart. first, count: multiples of
/// 8.
void grouped_product(const GroupedProduct& product, std::int64_t first, std::int64_t count, float* y,
                     std::int64_t stride);

}  // namespace tessera::quant
