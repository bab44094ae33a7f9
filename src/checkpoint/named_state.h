#pragma once
#include <vector>

#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/optimizer.h"

namespace tessera::checkpoint {

/// optimizer.state() under the names of the model's parameters. An optimizer that was given parameters() without slices
/// knows them by their numbers, which mean something else on each rank. ConfigError for state of anything else.
std::vector<optim::StateSlice> named_state(const fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer);

}  // namespace tessera::checkpoint
