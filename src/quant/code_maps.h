#pragma once
// The values that codes of bitsandbytes stand for.
#include <array>
#include <optional>
#include <string>

namespace tessera::quant {

/// NF4: quantiles of the normal distribution (Dettmers et al., "QLoRA", 2023, appendix E). FP4: a sign, two bits of
/// exponent, one of mantissa.
enum class FourBitType { kNf4, kFp4 };

/// "nf4", "fp4".
std::string type_name(FourBitType type);
/// Of this name; nothing for others.
std::optional<FourBitType> four_bit_type(const std::string& name);

/// In [-1, 1], by code.
const std::array<float, 16>& four_bit_values(FourBitType type);

/// The dynamic map (Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", 2016), ascending: in [-1, 1], or
/// in [0, 1] where there are no signs.
const std::array<float, 256>& dynamic_map(bool with_signs);
/// The same of 4-bit codes, in [-1, 1]: sixteen values.
const std::array<float, 16>& dynamic_map_of_four_bits();
/// 1/16, 2/16, ... 1: without a zero.
const std::array<float, 16>& linear_map_of_four_bits();

}  // namespace tessera::quant
