#include "data/shuffle.h"

#include <numeric>
#include <random>
#include <utility>

namespace tessera::data {
namespace {

struct SplitMix64 {  // Steele, Lea, Flood 2014
  std::uint64_t state;
  std::uint64_t operator()() {
    auto z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(
      std::uint64_t bound) {  // Lemire 2019, without the rejection: the bias is under 2^-40 for a dataset
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>((*this)()) * bound) >> 64);
  }
};

SplitMix64 stream_of(std::uint64_t seed, std::uint64_t epoch) {
  SplitMix64 mix{seed};
  return {mix() ^ (epoch * 0xD1342543DE82EF95u)};
}

}  // namespace

std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  auto random = stream_of(seed, epoch);
  for (auto i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

std::vector<std::int64_t> torch_permutation(std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(static_cast<std::uint32_t>(seed));  // torch's engine; it drops the seed's upper half, too
  for (std::size_t i = 0; i + 1 < order.size(); ++i) std::swap(order[i], order[i + random() % (order.size() - i)]);
  return order;
}

RowOrder RowOrder::in_sequence(std::int64_t count) {
  RowOrder order;
  order.count_ = count;
  return order;
}

RowOrder RowOrder::random(std::int64_t count, std::uint64_t seed, std::uint64_t epoch) {
  RowOrder order = in_sequence(count);
  if (count <= kListed) {
    const auto rows = torch_permutation(count, seed + epoch);
    order.listed_.assign(rows.begin(), rows.end());
    return order;
  }
  auto random = stream_of(seed, epoch);
  for (auto& key : order.keys_) key = random();
  while ((std::uint64_t{1} << (2 * order.half_bits_)) < static_cast<std::uint64_t>(count)) ++order.half_bits_;
  return order;
}

std::int64_t RowOrder::operator[](std::int64_t place) const {
  if (!listed_.empty()) return listed_[static_cast<std::size_t>(place)];
  if (half_bits_ == 0) return place;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto row = static_cast<std::uint64_t>(place);
  do {
    std::uint64_t left = row >> half_bits_, right = row & mask;
    for (const auto key : keys_) left = std::exchange(right, left ^ (SplitMix64{right ^ key}() & mask));
    row = left << half_bits_ | right;
  } while (row >= static_cast<std::uint64_t>(count_));
  return static_cast<std::int64_t>(row);
}

}  // namespace tessera::data
