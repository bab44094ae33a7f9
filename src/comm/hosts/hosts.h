#pragma once
// Which ranks live on which host. Ranks of a host follow each other, so that sums in rank order can be made host by
// host.
#include <string>
#include <vector>

namespace tessera::comm {

class Hosts {
 public:
  /// members[h]: what the ranks on host h are called in the world, ascending.
  explicit Hosts(std::vector<std::vector<int>> members);

  int count() const { return static_cast<int>(members_.size()); }
  int ranks() const { return first_.back(); }
  /// Of the ranks of this group: the first on host h, and how many there are.
  int first(int h) const { return first_[static_cast<std::size_t>(h)]; }
  int size(int h) const { return first(h + 1) - first(h); }
  int host_of(int rank) const;
  const std::vector<int>& members(int h) const { return members_[static_cast<std::size_t>(h)]; }
  /// Ranks of each host that talk to the other hosts, side by side: as many as the smallest host has.
  int lanes() const { return lanes_; }

 private:
  std::vector<std::vector<int>> members_;
  std::vector<int> first_;
  int lanes_ = 1;
};

/// Groups the world's ranks by what they say identifies their host. ConfigError where a host's ranks do not follow each
/// other.
Hosts hosts_of_world(const std::vector<std::string>& host_of_rank);

}  // namespace tessera::comm
