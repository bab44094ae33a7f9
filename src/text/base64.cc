#include "text/base64.h"

#include <array>
#include <cstdint>

namespace tessera::text {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

struct Values : std::array<signed char, 256> {
  constexpr Values() : array() {
    fill(-1);
    for (std::size_t i = 0; i < kDigits.size(); ++i)
      (*this)[static_cast<unsigned char>(kDigits[i])] = static_cast<signed char>(i);
  }
};
constexpr Values kValues;

}  // namespace

std::string encode_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = (bits << 8) | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
    for (std::size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kDigits[(bits >> (18 - 6 * k)) & 63] : '=';
  }
  return out;
}

bool decode_base64(std::string_view text, std::string& bytes) {
  std::uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    if (c == '=') break;
    const auto value = kValues[static_cast<unsigned char>(c)];
    if (value < 0) return false;
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  return true;
}

}  // namespace tessera::text
