#include "quant/code_maps.h"

#include <algorithm>
#include <cmath>

namespace tessera::quant {
namespace {

/// `count` numbers from 0.1 to 1, at equal distances, as torch.linspace has them: counted from the nearer end, rounded
/// once.
float place(int i, int count) {
  const double first = 0.1f, last = 1.0f, step = (1.0f - 0.1f) / static_cast<float>(count - 1);
  return static_cast<float>(i < count / 2 ? first + step * i : last - step * (count - 1 - i));
}

/// 2^(exponents + 1) values.
template <std::size_t N>
std::array<float, N> make_dynamic_map(int exponents, bool with_signs) {
  std::array<float, N> map{};
  std::size_t size = 0;
  for (int i = 0; i < exponents; ++i) {
    const int places = (1 << (with_signs ? i : i + 1)) + 1;
    const auto scale = static_cast<float>(std::pow(10.0, i + 1 - exponents));
    for (int k = 0; k + 1 < places; ++k) {
      const float middle = scale * ((place(k, places) + place(k + 1, places)) / 2.0f);
      map[size++] = middle;
      if (with_signs) map[size++] = -middle;
    }
  }
  map[size++] = 0.0f;
  map[size++] = 1.0f;
  std::sort(map.begin(), map.end());
  return map;
}

}  // namespace

std::string type_name(FourBitType type) {
  return type == FourBitType::kNf4 ? "nf4" : "fp4";
}

std::optional<FourBitType> four_bit_type(const std::string& name) {
  for (const auto type : {FourBitType::kNf4, FourBitType::kFp4})
    if (type_name(type) == name) return type;
  return std::nullopt;
}

const std::array<float, 16>& four_bit_values(FourBitType type) {
  static constexpr std::array<float, 16> kNf4 = {-1.0f,
                                                 -0.6961928009986877f,
                                                 -0.5250730514526367f,
                                                 -0.39491748809814453f,
                                                 -0.28444138169288635f,
                                                 -0.18477343022823334f,
                                                 -0.09105003625154495f,
                                                 0.0f,
                                                 0.07958029955625534f,
                                                 0.16093020141124725f,
                                                 0.24611230194568634f,
                                                 0.33791524171829224f,
                                                 0.44070982933044434f,
                                                 0.5626170039176941f,
                                                 0.7229568362236023f,
                                                 1.0f};
  static constexpr std::array<float, 16> kFp4 = {0.0f,          0.0625f / 12.0f,  8.0f / 12.0f,  12.0f / 12.0f,
                                                 4.0f / 12.0f,  6.0f / 12.0f,     2.0f / 12.0f,  3.0f / 12.0f,
                                                 0.0f,          -0.0625f / 12.0f, -8.0f / 12.0f, -12.0f / 12.0f,
                                                 -4.0f / 12.0f, -6.0f / 12.0f,    -2.0f / 12.0f, -3.0f / 12.0f};
  return type == FourBitType::kNf4 ? kNf4 : kFp4;
}

const std::array<float, 256>& dynamic_map(bool with_signs) {
  static const auto kSigned = make_dynamic_map<256>(7, true), kUnsigned = make_dynamic_map<256>(7, false);
  return with_signs ? kSigned : kUnsigned;
}

const std::array<float, 16>& dynamic_map_of_four_bits() {
  static const auto kMap = make_dynamic_map<16>(3, true);
  return kMap;
}

const std::array<float, 16>& linear_map_of_four_bits() {
  static const auto kMap = [] {
    std::array<float, 16> map{};
    for (std::size_t i = 0; i < map.size(); ++i) map[i] = static_cast<float>(i + 1) / 16.0f;
    return map;
  }();
  return kMap;
}

}  // namespace tessera::quant
