#pragma once
// How long a step takes on so many hosts: the runtime's own order of gathers, computation and reductions
// (base/unit_order.h) is played on a clock. One rank is played, for all do the same; operations between hosts run one
// at a time, beside computation, as comm/group/operation_queue.h runs them. docs/guides/large_models.md says what is
// counted and what is not.
#include <vector>

#include "config/accelerate.h"
#include "estimate/step_shape.h"

namespace tessera::estimate {

/// `flops` and `memory` of a rank while all ranks of its host are busy; `link` of a host, each way. A second's.
struct Rates {
  double flops = 0, memory = 0;  // of products; bytes that are read or written
  double link = 0;               // bytes
  double latency = 0;            // seconds until a message arrives
};

struct Cluster {
  int hosts = 1, ranks = 1;  // of each host
  Rates rates;
};

struct Schedule {
  config::ShardingStrategy strategy = config::ShardingStrategy::kFullShard;
  int accumulation = 1;
  bool sync_each_batch = false;
  config::BackwardPrefetch backward_prefetch = config::BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  int max_gathers_in_flight = 2;
};

/// What a rank does with its communicators, in order.
struct PlayedEvent {
  enum class Kind { kStartGather, kWaitGather, kStartReduce, kWaitReduce, kStartReplicas, kWaitReplicas };
  Kind kind;
  int unit = 0;  // 0: the root, else the block before which there are unit - 1
  bool operator==(const PlayedEvent&) const = default;
};

/// The longest that computation stood still for one operation.
struct Wait {
  double seconds = 0;
  int unit = 0;                // as in PlayedEvent
  const char* operation = "";  // "gather in the forward"
};

struct StepTime {
  double seconds = 0;
  double computed = 0;    // products, what is read and written beside them, and the update
  double exposed = 0;     // the rest: waits, and what moving bytes takes from the rank's cores
  double link_bytes = 0;  // of the busier way of the busiest host
  Wait longest;
  std::vector<PlayedEvent> events;
};

/// A step after the first.
StepTime play_step(const StepShape& shape, const Schedule& schedule, const Cluster& cluster);

}  // namespace tessera::estimate
