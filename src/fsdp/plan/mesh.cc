#include "fsdp/plan/mesh.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/rendezvous/own_host.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

/// Of each rank, its group.
std::vector<int> shard_groups(comm::Communicator& world, int group_size) {
  if (group_size == 0) return groups_by_host(world.all_gather_objects(comm::own_host()));
  if (group_size < 0 || world.size() % group_size != 0)
    throw ConfigError(
        fmt::format("hybrid sharding: a group of {} ranks does not divide the world of {}; choose a divisor of {}",
                    group_size, world.size(), world.size()),
        "fsdp_shard_group_size");
  std::vector<int> groups;
  for (int r = 0; r < world.size(); ++r) groups.push_back(r / group_size);
  return groups;
}

}  // namespace

std::vector<int> groups_by_host(const std::vector<std::string>& host_of_rank) {
  std::vector<std::string> hosts;
  std::vector<int> groups, sizes;
  for (const auto& host : host_of_rank) {
    const auto at = std::find(hosts.begin(), hosts.end(), host) - hosts.begin();
    if (static_cast<std::size_t>(at) == hosts.size()) hosts.push_back(host), sizes.push_back(0);
    ++sizes[static_cast<std::size_t>(at)];
    groups.push_back(static_cast<int>(at));
  }
  for (std::size_t h = 0; h < sizes.size(); ++h)
    if (sizes[h] != sizes[0])
      throw ConfigError(
          fmt::format("hybrid sharding inside each host needs equally many ranks on every host: the host of rank 0 has "
                      "{}, another {}. Start as many ranks on each, or set fsdp_shard_group_size",
                      sizes[0], sizes[h]),
          "fsdp_shard_group_size");
  return groups;
}

Mesh make_mesh(std::shared_ptr<comm::Communicator> world, ShardingStrategy strategy, int shard_group_size) {
  if (shard_group_size != 0 && !is_hybrid(strategy))
    throw ConfigError("a shard group of " + std::to_string(shard_group_size) +
                          " ranks has a meaning with HYBRID_SHARD and HYBRID_SHARD_ZERO2 only",
                      "fsdp_shard_group_size");
  if (strategy == ShardingStrategy::kNoShard)
    return {world, comm::make_solo(), world->size() > 1 ? world : nullptr, world->rank()};
  if (!is_hybrid(strategy)) return {world, world, nullptr, 0};
  const auto groups = shard_groups(*world, shard_group_size);
  const auto copies = *std::max_element(groups.begin(), groups.end()) + 1;
  if (copies == 1) return {world, world, nullptr, 0};
  const auto me = groups.begin() + world->rank();
  Mesh mesh{world, world->split(*me), nullptr, *me};
  mesh.replicate = world->split(static_cast<int>(std::count(groups.begin(), me, *me)));
  return mesh;
}

}  // namespace tessera::fsdp
