#pragma once
// The order of rows in an epoch: transformers' Trainer's, which is torch.randperm's. Own code, so that it is the same
// with every library.
#include <array>
#include <cstdint>
#include <vector>

namespace tessera::data {

/// A permutation of 0 .. count-1 that depends on nothing but its arguments (Fisher-Yates over splitmix64).
std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed, std::uint64_t epoch);

/// What torch.randperm(count) gives with a CPU generator of this seed.
std::vector<std::int64_t> torch_permutation(std::int64_t count, std::uint64_t seed);

/// An order of rows 0 .. count-1 that needs no memory for many of them. Up to kListed rows it is
/// torch_permutation(count, seed + epoch), as Accelerate's sampler draws it; above, a keyed bijection (a Feistel
/// network over the next power of four, repeated until it falls below count: Black and Rogaway 2002).
class RowOrder {
 public:
  static constexpr std::int64_t kListed = std::int64_t{1} << 20;

  RowOrder() = default;
  static RowOrder in_sequence(std::int64_t count);
  static RowOrder random(std::int64_t count, std::uint64_t seed, std::uint64_t epoch);

  /// The row at a place in [0, count).
  std::int64_t operator[](std::int64_t place) const;

 private:
  std::int64_t count_ = 0;
  std::vector<std::uint32_t> listed_;
  std::array<std::uint64_t, 6> keys_{};
  int half_bits_ = 0;  // of the network's two halves; 0: listed, or in sequence
};

}  // namespace tessera::data
