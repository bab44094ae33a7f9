#include "base/numpy_random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

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

}  // namespace

// PCG XSL RR 128/64.
NumpyRandom::NumpyRandom(std::uint64_t seed) {
  const auto wide = [](std::uint64_t high, std::uint64_t low) { return (Wide{high} << 64) | low; };
  const auto s = SeedSequence(seed).state();
  increment_ = (wide(s[2], s[3]) << 1) | 1;
  step();
  state_ += wide(s[0], s[1]);
  step();
}

void NumpyRandom::step() {
  state_ = state_ * ((Wide{0x2360ed051fc65da4} << 64) | 0x4385df649fccf645) + increment_;
}

std::uint32_t NumpyRandom::next() {
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

std::uint32_t NumpyRandom::by_bits(std::uint32_t last) {
  if (last == 0) return 0;
  const auto mask = static_cast<std::uint32_t>(std::bit_ceil(std::uint64_t{last} + 1) - 1);
  std::uint32_t drawn = next() & mask;
  while (drawn > last) drawn = next() & mask;
  return drawn;
}

std::uint32_t NumpyRandom::by_product(std::uint32_t last) {
  if (last == 0) return 0;
  if (last == UINT32_MAX) return next();
  const std::uint32_t count = last + 1, left_out = (UINT32_MAX - last) % count;
  auto product = std::uint64_t{next()} * count;
  while (static_cast<std::uint32_t>(product) < left_out) product = std::uint64_t{next()} * count;
  return static_cast<std::uint32_t>(product >> 32);
}

void NumpyRandom::shuffle(std::vector<std::int64_t>& values) {
  TESSERA_CHECK(values.size() <= UINT32_MAX, "as many values as 32 bits count");
  for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[by_bits(static_cast<std::uint32_t>(i))]);
}

void NumpyRandom::exchange(std::vector<std::int64_t>& values, std::size_t begin) {
  for (std::size_t i = values.size(); i-- > std::max<std::size_t>(begin, 1);)
    std::swap(values[i], values[by_product(static_cast<std::uint32_t>(i))]);
}

// A large part of many: the end of them all, shuffled; else Floyd's algorithm.
std::vector<std::int64_t> NumpyRandom::choice(std::int64_t below, std::int64_t count) {
  TESSERA_CHECK(count >= 0 && count <= below && below <= UINT32_MAX, "as many values as 32 bits count");
  std::vector<std::int64_t> out;
  constexpr std::int64_t kMany = 10000, kShare = 50;
  if (below > kMany && count > below / kShare) {
    out.resize(static_cast<std::size_t>(below));
    std::iota(out.begin(), out.end(), 0);
    exchange(out, static_cast<std::size_t>(below - count));
    out.erase(out.begin(), out.end() - count);
    return out;
  }
  std::unordered_set<std::int64_t> chosen;
  for (std::int64_t last = below - count; last < below; ++last) {
    std::int64_t drawn = by_product(static_cast<std::uint32_t>(last));
    if (!chosen.insert(drawn).second) chosen.insert(drawn = last);
    out.push_back(drawn);
  }
  exchange(out, 1);
  return out;
}

}  // namespace tessera
