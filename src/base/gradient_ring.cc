#include "base/gradient_ring.h"

#include <algorithm>
#include <numeric>

namespace tessera {

std::int64_t ring_size(std::vector<std::int64_t> buckets) {
  constexpr std::int64_t kTurns = 3;
  if (buckets.empty()) return 0;
  std::sort(buckets.begin(), buckets.end());
  const auto all = std::accumulate(buckets.begin(), buckets.end(), std::int64_t{0});
  return std::min(all, std::max(buckets.back(), kTurns * buckets[buckets.size() / 2]));
}

}  // namespace tessera
