#include "base/crc32c.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
// A message is a polynomial over GF(2), and the checksum its remainder. 64 bytes stay congruent to all before them when
// each half of 16 bytes is multiplied by what x^512 leaves there and added to the 16 bytes that lie 64 bytes on (Gopal
// et al. 2009, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"). Products do this at several
// times the rate of the CRC instruction, which on some processors starts only once in three cycles.
constexpr std::size_t kFolded = 64;
// Reflected remainders of x^(8 n + 31), for a half's lower eight bytes, and x^(8 n - 33), for its upper ones; n =
// 256, 64, 16.
constexpr long long kFold256[2] = {0xdcb17aa4, 0xb9e02b86}, kFold64[2] = {0x740eef02, 0x9e4addf8},
                    kFold16[2] = {0xf20c0dfe, 0x493c7d27};

__attribute__((target("sse4.2,pclmul"))) inline __m128i folded(__m128i sum, __m128i by, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(sum, by, 0x00), high = _mm_clmulepi64_si128(sum, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("sse4.2,pclmul"))) inline __m128i load(const unsigned char* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

/// bytes: at least kFolded. Leaves less than that, and moves `at` and `bytes` on.
__attribute__((target("sse4.2,pclmul"))) std::uint32_t by_folding(const unsigned char*& at, std::size_t& bytes,
                                                                  std::uint32_t crc) {
  const __m128i by = _mm_set_epi64x(kFold64[1], kFold64[0]);
  __m128i a = _mm_xor_si128(load(at), _mm_cvtsi32_si128(static_cast<int>(crc)));
  __m128i b = load(at + 16), c = load(at + 32), d = load(at + 48);
  for (at += kFolded, bytes -= kFolded; bytes >= kFolded; at += kFolded, bytes -= kFolded) {
    a = folded(a, by, load(at));
    b = folded(b, by, load(at + 16));
    c = folded(c, by, load(at + 32));
    d = folded(d, by, load(at + 48));
  }
  const __m128i near = _mm_set_epi64x(kFold16[1], kFold16[0]);
  d = folded(folded(folded(a, near, b), near, c), near, d);
  const auto low = static_cast<std::uint64_t>(_mm_cvtsi128_si64(d)),
             high = static_cast<std::uint64_t>(_mm_extract_epi64(d, 1));
  return static_cast<std::uint32_t>(_mm_crc32_u64(_mm_crc32_u64(0, low), high));
}

// The same, four products an instruction: a register holds 64 bytes, and four of them hide how long a product takes.
constexpr std::size_t kFoldedWide = 4 * kFolded;
#define TESSERA_WIDE_PRODUCTS __attribute__((target("avx512f,vpclmulqdq,sse4.2,pclmul")))

TESSERA_WIDE_PRODUCTS inline __m512i folded(__m512i sum, __m512i by, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(sum, by, 0x00), high = _mm512_clmulepi64_epi128(sum, by, 0x11);
  return _mm512_xor_si512(_mm512_xor_si512(low, high), next);
}

TESSERA_WIDE_PRODUCTS inline __m512i in_each_lane(const long long (&fold)[2]) {
  return _mm512_set_epi64(fold[1], fold[0], fold[1], fold[0], fold[1], fold[0], fold[1], fold[0]);
}

/// bytes: at least kFoldedWide. Leaves less than kFolded, and moves `at` and `bytes` on.
TESSERA_WIDE_PRODUCTS std::uint32_t by_wide_folding(const unsigned char*& at, std::size_t& bytes, std::uint32_t crc) {
  __m512i by = in_each_lane(kFold256);
  __m512i a =
      _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  __m512i b = _mm512_loadu_si512(at + 64), c = _mm512_loadu_si512(at + 128), d = _mm512_loadu_si512(at + 192);
  for (at += kFoldedWide, bytes -= kFoldedWide; bytes >= kFoldedWide; at += kFoldedWide, bytes -= kFoldedWide) {
    a = folded(a, by, _mm512_loadu_si512(at));
    b = folded(b, by, _mm512_loadu_si512(at + 64));
    c = folded(c, by, _mm512_loadu_si512(at + 128));
    d = folded(d, by, _mm512_loadu_si512(at + 192));
  }
  by = in_each_lane(kFold64);
  d = folded(folded(folded(a, by, b), by, c), by, d);
  for (; bytes >= kFolded; at += kFolded, bytes -= kFolded) d = folded(d, by, _mm512_loadu_si512(at));
  unsigned char last[kFolded];  // what stands for all before
  _mm512_storeu_si512(last, d);
  const unsigned char* rest = last;
  std::size_t rest_bytes = kFolded;
  return by_folding(rest, rest_bytes, 0);
}
#undef TESSERA_WIDE_PRODUCTS

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const unsigned char* at, std::size_t bytes,
                                                               std::uint32_t crc) {
  std::uint64_t wide = crc;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  auto narrow = static_cast<std::uint32_t>(wide);
  for (; bytes > 0; --bytes) narrow = _mm_crc32_u8(narrow, *at++);
  return narrow;
}
#endif

std::uint32_t update(const unsigned char* at, std::size_t bytes, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_crc = __builtin_cpu_supports("sse4.2") != 0,
                    has_products = has_crc && __builtin_cpu_supports("pclmul") != 0,
                    has_wide_products = has_products && __builtin_cpu_supports("avx512f") != 0 &&
                                        __builtin_cpu_supports("vpclmulqdq") != 0;
  if (has_wide_products && bytes >= kFoldedWide)
    crc = by_wide_folding(at, bytes, crc);
  else if (has_products && bytes >= kFolded)
    crc = by_folding(at, bytes, crc);
  if (has_crc) return by_instruction(at, bytes, crc);
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
