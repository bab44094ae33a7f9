#include "base/crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "eight bytes are taken at a time, the lowest first");

using Table = std::array<std::uint32_t, 256>;

/// Table k advances a byte over k more bytes: eight independent look-ups for eight bytes.
std::array<Table, 8> make_tables() {
  std::array<Table, 8> t{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    t[0][i] = i;
    for (int k = 0; k < 8; ++k) t[0][i] = (t[0][i] >> 1) ^ (t[0][i] & 1 ? 0xEDB88320u : 0);
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xFF];
  return t;
}

}  // namespace

std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t before) {
  static const auto t = make_tables();
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint32_t crc = ~before;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint32_t low = 0, high = 0;
    std::memcpy(&low, at, 4);
    std::memcpy(&high, at + 4, 4);
    low ^= crc;
    crc = t[7][low & 0xFF] ^ t[6][low >> 8 & 0xFF] ^ t[5][low >> 16 & 0xFF] ^ t[4][low >> 24] ^ t[3][high & 0xFF] ^
          t[2][high >> 8 & 0xFF] ^ t[1][high >> 16 & 0xFF] ^ t[0][high >> 24];
  }
  for (; bytes > 0; --bytes) crc = t[0][(crc ^ *at++) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

}  // namespace tessera
