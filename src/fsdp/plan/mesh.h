#pragma once
// Who shares what: the ranks of `shard` hold the slices of one copy of the model, the ranks of `replicate` equal slices
// of different copies. `world` is both together.
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

struct Mesh {
  std::shared_ptr<comm::Communicator> world, shard, replicate;  // replicate: null when there is one copy
  int replica = 0;                                              // which copy this rank has a part of
};

/// Collective. ConfigError where the group size does not divide the world, or hosts have different numbers of ranks.
Mesh make_mesh(std::shared_ptr<comm::Communicator> world, ShardingStrategy strategy, int shard_group_size);

/// Rank -> the group that it shards in, by who lives where: hosts in the order of their first ranks. ConfigError unless
/// all have equally many ranks.
std::vector<int> groups_by_host(const std::vector<std::string>& host_of_rank);

/// Units are released after forward and gathered again for backward.
inline bool reshards_after_forward(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kFullShard || strategy == ShardingStrategy::kHybridShard;
}
inline bool is_hybrid(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kHybridShard || strategy == ShardingStrategy::kHybridShardZero2;
}

/// Slices, gradients and optimizer state lie on another device than the CPU.
inline bool is_resident(const FsdpOptions& options) {
  return !options.device.is_cpu() && options.state_on == StateOn::kDevice;
}

}  // namespace tessera::fsdp
