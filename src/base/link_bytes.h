#pragma once
// The bytes that collectives between hosts bring over a host's link: the least that can be (docs/architecture.md,
// "Several hosts", derives it), which comm/hosts/ moves and estimate/step_time.h counts with. Pure arithmetic.
#include <cstdint>

namespace tessera {

struct LinkBytes {
  double out = 0, in = 0;
};

enum class HostOperation { kAllGather, kReduceScatter, kAllReduce, kBroadcast };

/// `hosts` with `ranks` each.
struct HostPlace {
  int host = 0, hosts = 1, ranks = 1;
};

/// Whether a sum of elements of `item` bytes, made in elements of `sum` bytes, goes from each rank to its owner; else
/// hosts pass it on, each lane's part in chunks of kChunkNumel elements.
constexpr bool sums_directly(int ranks, double item, double sum = 4) {
  return ranks * item <= sum;
}
inline constexpr std::int64_t kChunkNumel = 256 * 1024;

/// Of a vector of `numel` elements of `item` bytes, all ranks' slices together.
LinkBytes least_link_bytes(HostOperation operation, const HostPlace& place, double numel, double item);

}  // namespace tessera
