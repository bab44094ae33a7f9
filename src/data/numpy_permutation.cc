#include "data/numpy_permutation.h"

#include <numeric>

#include "base/numpy_random.h"

namespace tessera::data {

std::vector<std::int64_t> numpy_permutation(std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  NumpyRandom(seed).shuffle(out);
  return out;
}

}  // namespace tessera::data
