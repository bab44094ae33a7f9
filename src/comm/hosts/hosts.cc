#include "comm/hosts/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"

namespace tessera::comm {

Hosts::Hosts(std::vector<std::vector<int>> members) : members_(std::move(members)) {
  lanes_ = static_cast<int>(members_.front().size());
  int next = 0;
  for (const auto& host : members_) {
    first_.push_back(next);
    next += static_cast<int>(host.size());
    lanes_ = std::min(lanes_, static_cast<int>(host.size()));
  }
  first_.push_back(next);
}

int Hosts::host_of(int rank) const {
  return static_cast<int>(std::upper_bound(first_.begin(), first_.end(), rank) - first_.begin()) - 1;
}

Hosts hosts_of_world(const std::vector<std::string>& host_of_rank) {
  std::vector<std::vector<int>> members;
  std::set<std::string> seen;
  for (std::size_t r = 0; r < host_of_rank.size(); ++r) {
    if (r == 0 || host_of_rank[r] != host_of_rank[r - 1]) {
      if (!seen.insert(host_of_rank[r]).second) {
        throw ConfigError(
            fmt::format(
                "rank {} is on the same host as an earlier rank, but the ranks between are on others: the ranks "
                "of a host must follow each other (mpirun --map-by slot, srun --distribution=block)",
                r),
            "RANK");
      }
      members.emplace_back();
    }
    members.back().push_back(static_cast<int>(r));
  }
  return Hosts(std::move(members));
}

}  // namespace tessera::comm
