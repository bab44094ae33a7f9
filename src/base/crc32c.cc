#include "base/crc32c.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <isa-l/crc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/open_file.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

/// A linear map of 32 bits: column i is the image of bit i.
using BitMatrix = std::array<std::uint32_t, 32>;

std::uint32_t times(const BitMatrix& m, std::uint32_t v) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; v != 0; ++i, v >>= 1)
    if (v & 1) sum ^= m[i];
  return sum;
}

BitMatrix squared(const BitMatrix& m) {
  BitMatrix out{};
  for (std::size_t i = 0; i < 32; ++i) out[i] = times(m, m[i]);
  return out;
}

/// Entry k appends 2^k zero bytes. Appending a zero bit is a linear map; so are its powers.
std::array<BitMatrix, 64> powers_of_a_byte() {
  std::array<BitMatrix, 64> powers{};
  BitMatrix shift{};
  shift[0] = kPolynomial;
  for (std::size_t i = 1; i < 32; ++i) shift[i] = 1u << (i - 1);
  for (int k = 0; k < 3; ++k) shift = squared(shift);  // a byte
  for (BitMatrix& power : powers) {
    power = shift;
    shift = squared(shift);
  }
  return powers;
}

/// `crc` with so many zero bytes appended.
std::uint32_t shifted(std::uint32_t crc, std::uint64_t bytes) {
  static const auto powers = powers_of_a_byte();
  for (std::size_t k = 0; bytes != 0; ++k, bytes >>= 1)
    if (bytes & 1) crc = times(powers[k], crc);
  return crc;
}

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before) {
  constexpr std::size_t kMaxCall = std::size_t{1} << 30;  // the library counts in int
  // It reads only, though its parameter is not const.
  auto* at = const_cast<unsigned char*>(static_cast<const unsigned char*>(data));
  std::uint32_t crc = ~before;
  for (std::size_t count = 0; bytes > 0; at += count, bytes -= count) {
    count = std::min(bytes, kMaxCall);
    crc = ::crc32_iscsi(at, static_cast<int>(count), crc);
  }
  return ~crc;
}

std::uint32_t crc32c_combine(std::uint32_t a, std::uint32_t b, std::uint64_t bytes_of_b) {
  return shifted(a, bytes_of_b) ^ b;
}

std::uint32_t crc32c_of_file(const std::string& path, std::int64_t* bytes) {
  const OpenFile file(path);
  constexpr std::int64_t kAhead = std::int64_t{8} << 20;  // asked of the disk before it is needed
  std::vector<char> buffer(std::size_t{1} << 18);         // stays in the cache
  std::uint32_t crc = 0;
  std::int64_t total = 0;
  ssize_t got = 0;
  do {
    if (total % kAhead == 0) ::posix_fadvise(file.descriptor(), total, 2 * kAhead, POSIX_FADV_WILLNEED);
    got = ::read(file.descriptor(), buffer.data(), buffer.size());
    if (got > 0) {
      crc = crc32c(buffer.data(), static_cast<std::size_t>(got), crc);
      total += got;
    }
  } while (got > 0 || (got < 0 && errno == EINTR));
  if (got < 0) throw DataError(fmt::format("cannot read '{}': {}", path, std::strerror(errno)), path);
  if (bytes) *bytes = total;
  return crc;
}

std::string crc32c_text(std::uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

}  // namespace tessera
