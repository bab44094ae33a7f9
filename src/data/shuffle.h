#pragma once
// The order of rows in an epoch. Own code, so that it is the same with every standard library.
#include <cstdint>
#include <vector>

namespace tessera::data {

/// A permutation of 0 .. count-1 that depends on nothing but its arguments (Fisher-Yates over splitmix64).
std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed, std::uint64_t epoch);

}  // namespace tessera::data
