#include "estimate/host_operations.h"

#include <algorithm>

namespace tessera::estimate {
namespace {

// Agreement about the operation, the receiver's word that it is ready, and the bytes themselves (comm/hosts/wire.h,
// transport_gloo.h).
constexpr double kMessages = 3;
// A byte is copied into the system on one side and out of it on the other: read and written twice on each host.
constexpr double kPasses = 4;
constexpr double kSumBytes = 4;

double busiest_way(HostOperation operation, int hosts, int ranks, double numel, double item) {
  double most = 0;
  for (const int host : {0, 1, hosts - 1}) {
    const auto bytes = least_link_bytes(operation, {host, hosts, ranks}, numel, item);
    most = std::max({most, bytes.out, bytes.in});
  }
  return most;
}

/// Hosts pass chunks on: the last begins when the first chunk has come to it.
double fill_seconds(HostOperation operation, const Cluster& c, double numel, double item) {
  if (operation == HostOperation::kAllGather || sums_directly(c.ranks, item)) return 0;
  const double chunk = std::min(numel, static_cast<double>(kChunkNumel * c.ranks));
  const double sums = c.hosts - 2, results = operation == HostOperation::kAllReduce ? c.hosts - 1 : 1;
  return (sums * chunk * kSumBytes +
          results * chunk * (operation == HostOperation::kAllReduce ? item : kSumBytes / c.hosts)) /
             c.rates.link +
         (sums + results) * c.rates.latency;
}

OperationCost finished(const Cluster& c, double bytes, double copied, double fill) {
  OperationCost cost;
  cost.link_bytes = bytes;
  cost.rank_seconds = (kPasses * bytes / c.ranks + copied) / c.rates.memory;
  cost.seconds = kMessages * c.rates.latency + std::max(bytes / c.rates.link, cost.rank_seconds) + fill;
  return cost;
}

}  // namespace

OperationCost cost_of(HostOperation operation, const Cluster& c, double numel, double item) {
  if (c.hosts == 1) return {};
  // What a gather brings a rank shares with the others of its host; sums of a host's ranks are made from all their
  // inputs, each rank a part.
  const bool gathers = operation != HostOperation::kReduceScatter, sums = operation != HostOperation::kAllGather;
  double copied = sums ? numel * item : 0;
  if (gathers && c.ranks > 1) copied += 2 * numel * item;
  return finished(c, busiest_way(operation, c.hosts, c.ranks, numel, item), copied,
                  fill_seconds(operation, c, numel, item));
}

OperationCost cost_side_by_side(HostOperation operation, const Cluster& c, double numel, double item) {
  if (c.hosts == 1) return {};
  const auto bytes = c.ranks * busiest_way(operation, c.hosts, 1, numel, item);
  return finished(c, bytes, numel * item, 0);
}

OperationCost cost_of_small(const Cluster& c) {
  return c.hosts == 1 ? OperationCost{} : OperationCost{.seconds = kMessages * c.rates.latency};
}

}  // namespace tessera::estimate
