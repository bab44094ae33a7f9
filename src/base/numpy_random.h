#pragma once
// numpy.random.default_rng(seed) (1.17 and later), as far as something here is drawn by it.
#include <cstdint>
#include <vector>

namespace tessera {

/// Source: PCG64 (O'Neill 2014) seeded by numpy's SeedSequence.
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint64_t seed);
  /// shuffle(values) of one dimension. Fewer than 2^32 values.
  void shuffle(std::vector<std::int64_t>& values);
  /// choice(below, size=count, replace=False). below at most 2^32.
  std::vector<std::int64_t> choice(std::int64_t below, std::int64_t count);

 private:
  __extension__ using Wide = unsigned __int128;

  /// Below 2^32; of each 64 bits the low half, then the high one.
  std::uint32_t next();
  /// From 0 to `last`: of the bits that it has, until they are no more than it.
  std::uint32_t by_bits(std::uint32_t last);
  /// The same by a product (Lemire 2019).
  std::uint32_t by_product(std::uint32_t last);
  /// values[begin..] are drawn from all.
  void exchange(std::vector<std::int64_t>& values, std::size_t begin);
  void step();

  Wide state_ = 0, increment_ = 0;
  bool has_high_ = false;
  std::uint32_t high_ = 0;
};

}  // namespace tessera
