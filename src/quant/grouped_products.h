#pragma once
// Products of a few rows with the 4-bit codes of GPTQ and AWQ, whose words lie by inputs (word_layout.h): the words of
// some outputs become factors in a vector, and a group's scale and zero point come after its sum: scale * (sum of x
// code - zero * sum of x). Weights are not rounded to bfloat16; codes, from 0 to 15, are exact in it.
#include <bit>
#include <cstdint>
#include <type_traits>

#include "quant/word_layout.h"

namespace tessera::quant {

/// In vectors (base/cpu_dispatch.h); not on x86-64 without AVX2, where they are not worth it.
bool has_grouped_products();
/// Of pairs of bfloat16 (AVX512_BF16).
bool has_grouped_pair_products();

constexpr std::int64_t kMostGroupedRows = 8;
/// How many rows are computed for `few` of them: 1, 2, 4 or 8. The rest of them is zeros.
constexpr std::int64_t grouped_rows(std::int64_t few) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(few)));
}
/// call(std::integral_constant<int, few>()), of a number that grouped_rows() gives.
template <class Call>
void with_grouped_rows(std::int64_t few, const Call& call) {
  switch (few) {
    case 1:
      return call(std::integral_constant<int, 1>());
    case 2:
      return call(std::integral_constant<int, 2>());
    case 4:
      return call(std::integral_constant<int, 4>());
    default:
      return call(std::integral_constant<int, 8>());
  }
}

enum class ScaleDtype { kHalf, kBFloat16, kFloat };

struct GroupedProduct {
  WordLayout layout;
  bool zeros_less_one;
  ScaleDtype scale_dtype;      // with pairs not kFloat
  std::int64_t rows, columns;  // outputs, a multiple of 8; inputs
  std::int64_t group_size;     // a multiple of 8; unused with `order`
  const std::int32_t *words, *zeros;
  const void* scales;
  std::int64_t few;     // one that grouped_rows() gives
  const void* x;        // [columns, few] float32; or [columns / 2, few], pairs of bfloat16
  const float* x_sums;  // of each group's inputs: [groups, few]
  /// kGptq and float32 alone: the inputs, group by group, where groups do not follow each other (act-order), and where
  /// each group begins among them, then their number. x has its inputs in this order, too. Null: they follow each
  /// other.
  const std::int32_t* order = nullptr;
  const std::int64_t* begins = nullptr;
  std::int64_t groups = 0;
};
/// On one thread. y [few, rows]: of outputs [first, first + count), multiples of 8. p.x: float32.
void grouped_product(const GroupedProduct& p, std::int64_t first, std::int64_t count, float* y);
/// The same; p.x: pairs.
void grouped_pair_product(const GroupedProduct& p, std::int64_t first, std::int64_t count, float* y);

}  // namespace tessera::quant
