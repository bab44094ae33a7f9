#pragma once
#include <cstdint>

#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

/// Collective, one unit whole at a time. Compares the checksum of every parameter, whole as this rank sees it, with
/// rank 0's; returns how many there are. Error on every rank where one differs: it names the first of them and the
/// ranks.
std::int64_t check_replicas(FullyShardedDataParallel& model);

}  // namespace tessera::fsdp
