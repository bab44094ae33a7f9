#include "base/crc32c.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

std::uint32_t by_table(const unsigned char* at, std::size_t bytes, std::uint32_t crc) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      t[i] = i;
      for (int k = 0; k < 8; ++k) t[i] = (t[i] >> 1) ^ (t[i] & 1 ? kPolynomial : 0);
    }
    return t;
  }();
  for (; bytes > 0; --bytes) crc = table[(crc ^ *at++) & 0xFF] ^ (crc >> 8);
  return crc;
}

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

/// `crc` with so many zero bytes appended. Appending a zero bit is a linear map; so is its 2^k-th power, appending 2^k
/// of them.
std::uint32_t shifted(std::uint32_t crc, std::uint64_t bytes) {
  BitMatrix shift{};
  shift[0] = kPolynomial;
  for (std::size_t i = 1; i < 32; ++i) shift[i] = 1u << (i - 1);
  for (int k = 0; k < 3; ++k) shift = squared(shift);  // a byte
  for (; bytes != 0; bytes >>= 1) {
    if (bytes & 1) crc = times(shift, crc);
    shift = squared(shift);
  }
  return crc;
}

#if defined(__x86_64__)
/// The instruction's result comes three cycles later, but one can start in each: so three lanes of a block run at once,
/// and are joined by tables of what a lane of zeros does to each byte of a checksum.
constexpr std::size_t kLaneBytes = 2048, kLanes = 3;

std::uint32_t shifted_by_lane(std::uint32_t crc) {
  static const auto tables = [] {
    std::array<std::array<std::uint32_t, 256>, 4> t{};
    for (std::uint32_t byte = 0; byte < 4; ++byte)
      for (std::uint32_t i = 0; i < 256; ++i) t[byte][i] = shifted(i << (8 * byte), kLaneBytes);
    return t;
  }();
  return tables[0][crc & 0xFF] ^ tables[1][crc >> 8 & 0xFF] ^ tables[2][crc >> 16 & 0xFF] ^ tables[3][crc >> 24];
}

__attribute__((target("sse4.2"))) std::uint32_t block_by_instruction(const unsigned char* at, std::uint32_t crc) {
  std::uint64_t lanes[kLanes] = {crc, 0, 0};
  for (std::size_t i = 0; i < kLaneBytes; i += 8) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      std::uint64_t word;
      std::memcpy(&word, at + lane * kLaneBytes + i, 8);
      lanes[lane] = __builtin_ia32_crc32di(lanes[lane], word);
    }
  }
  crc = static_cast<std::uint32_t>(lanes[0]);
  for (std::size_t lane = 1; lane < kLanes; ++lane)
    crc = shifted_by_lane(crc) ^ static_cast<std::uint32_t>(lanes[lane]);
  return crc;
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const unsigned char* at, std::size_t bytes,
                                                               std::uint32_t crc) {
  for (; bytes >= kLanes * kLaneBytes; bytes -= kLanes * kLaneBytes, at += kLanes * kLaneBytes)
    crc = block_by_instruction(at, crc);
  std::uint64_t wide = crc;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  auto narrow = static_cast<std::uint32_t>(wide);
  for (; bytes > 0; --bytes) narrow = __builtin_ia32_crc32qi(narrow, *at++);
  return narrow;
}
#endif

std::uint32_t update(const unsigned char* at, std::size_t bytes, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("sse4.2") != 0;
  if (fast) return by_instruction(at, bytes, crc);
#endif
  return by_table(at, bytes, crc);
}

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before) {
  return ~update(static_cast<const unsigned char*>(data), bytes, ~before);
}

std::uint32_t crc32c_combine(std::uint32_t a, std::uint32_t b, std::uint64_t bytes_of_b) {
  return shifted(a, bytes_of_b) ^ b;
}

std::uint32_t crc32c_of_file(const std::string& path, std::int64_t* bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw DataError(fmt::format("cannot read '{}': {}", path, std::strerror(errno)), path);
  constexpr std::int64_t kAhead = std::int64_t{8} << 20;  // asked of the disk before it is needed
  std::vector<char> buffer(std::size_t{1} << 18);         // stays in the cache
  std::uint32_t crc = 0;
  std::int64_t total = 0;
  ssize_t got = 0;
  do {
    if (total % kAhead == 0) ::posix_fadvise(fd, total, 2 * kAhead, POSIX_FADV_WILLNEED);
    got = ::read(fd, buffer.data(), buffer.size());
    if (got > 0) {
      crc = crc32c(buffer.data(), static_cast<std::size_t>(got), crc);
      total += got;
    }
  } while (got > 0 || (got < 0 && errno == EINTR));
  const int error = errno;
  ::close(fd);
  if (got < 0) throw DataError(fmt::format("cannot read '{}': {}", path, std::strerror(error)), path);
  if (bytes) *bytes = total;
  return crc;
}

std::string crc32c_text(std::uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

}  // namespace tessera
