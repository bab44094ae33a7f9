#include "data/numpy_permutation.h"

#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

__extension__ using Wide = unsigned __int128;

/// numpy.random.SeedSequence(seed).generate_state(4, uint64).
class SeedSequence {
 public:
  explicit SeedSequence(std::uint64_t seed) {
    pool_ = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32), 0, 0};
    for (auto& word : pool_) word = hashed(word);
    for (std::size_t from = 0; from < pool_.size(); ++from)
      for (std::size_t to = 0; to < pool_.size(); ++to)
        if (from != to) pool_[to] = mixed(pool_[to], hashed(pool_[from]));
  }

  std::array<std::uint64_t, 4> state() const {
    std::array<std::uint64_t, 4> out{};
    std::uint32_t constant = 0x8b51f9dd;
    for (std::size_t i = 0; i < 2 * out.size(); ++i) {
      std::uint32_t word = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38ded;
      word *= constant;
      word ^= word >> 16;
      out[i / 2] |= std::uint64_t{word} << (i % 2 * 32);
    }
    return out;
  }

 private:
  std::uint32_t hashed(std::uint32_t word) {
    word ^= constant_;
    constant_ *= 0x931e8875;
    word *= constant_;
    return word ^ (word >> 16);
  }
  static std::uint32_t mixed(std::uint32_t a, std::uint32_t b) {
    const std::uint32_t out = 0xca01f9ddU * a - 0x4973f715U * b;
    return out ^ (out >> 16);
  }

  std::array<std::uint32_t, 4> pool_{};
  std::uint32_t constant_ = 0x43b0d7e5;
};

/// PCG XSL RR 128/64.
class Pcg64 {
 public:
  explicit Pcg64(std::uint64_t seed) {
    const auto s = SeedSequence(seed).state();
    increment_ = (wide(s[2], s[3]) << 1) | 1;
    step();
    state_ += wide(s[0], s[1]);
    step();
  }

  /// Below 2^32; of each 64 bits the low half, then the high one.
  std::uint32_t next() {
    if (has_high_) {
      has_high_ = false;
      return high_;
    }
    step();
    const auto both = std::rotr(static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_),
                                static_cast<int>(state_ >> 122));
    has_high_ = true;
    high_ = static_cast<std::uint32_t>(both >> 32);
    return static_cast<std::uint32_t>(both);
  }

  /// From 0 to `last`: of the bits that it has, until they are no more than it.
  std::uint32_t up_to(std::uint32_t last) {
    const auto mask = static_cast<std::uint32_t>(std::bit_ceil(std::uint64_t{last} + 1) - 1);
    std::uint32_t drawn = next() & mask;
    while (drawn > last) drawn = next() & mask;
    return drawn;
  }

 private:
  static Wide wide(std::uint64_t high, std::uint64_t low) { return (Wide{high} << 64) | low; }
  void step() { state_ = state_ * wide(0x2360ed051fc65da4, 0x4385df649fccf645) + increment_; }

  Wide state_ = 0, increment_ = 0;
  bool has_high_ = false;
  std::uint32_t high_ = 0;
};

}  // namespace

std::vector<std::int64_t> numpy_permutation(std::int64_t count, std::uint64_t seed) {
  TESSERA_CHECK(count >= 0 && count <= UINT32_MAX, "as many rows as 32 bits count");
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  Pcg64 random(seed);
  for (std::int64_t i = count - 1; i > 0; --i)
    std::swap(out[static_cast<std::size_t>(i)], out[random.up_to(static_cast<std::uint32_t>(i))]);
  return out;
}

}  // namespace tessera::data
