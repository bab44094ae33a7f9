#pragma once
// How long an operation between hosts takes by itself, and what it takes from a rank's cores.
#include "base/link_bytes.h"
#include "estimate/step_time.h"

namespace tessera::estimate {

struct OperationCost {
  double seconds = 0;       // nothing else uses the link
  double rank_seconds = 0;  // of the rank's cores
  double link_bytes = 0;
};

/// Of a vector of `numel` elements of `item` bytes. One host: nothing is moved.
OperationCost cost_of(HostOperation operation, const Cluster& cluster, double numel, double item);
/// All ranks of a host at once, each with those in its place on the other hosts, and each with such a vector.
OperationCost cost_side_by_side(HostOperation operation, const Cluster& cluster, double numel, double item);
/// A number of each rank.
OperationCost cost_of_small(const Cluster& cluster);

}  // namespace tessera::estimate
