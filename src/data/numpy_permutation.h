#pragma once
// numpy.random.default_rng(seed).permutation(count): what the library `datasets` shuffles rows and draws held-out ones
// by.
#include <cstdint>
#include <vector>

namespace tessera::data {

/// 0, 1, ..., count - 1 in numpy's order (1.17 and later). count below 2^32.
std::vector<std::int64_t> numpy_permutation(std::int64_t count, std::uint64_t seed);

}  // namespace tessera::data
