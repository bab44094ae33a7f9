#pragma once
// In which order buckets of gradients are reduced: one that all ranks share.
#include <cstddef>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera::fsdp {

class ReductionOrder {
 public:
  ReductionOrder() = default;
  /// By bucket: the place of its first parameter in the order of registration. The order starts as the reverse.
  explicit ReductionOrder(const std::vector<int>& registered);

  std::size_t size() const { return order_.size(); }
  std::size_t bucket(std::size_t position) const { return static_cast<std::size_t>(order_[position]); }
  std::size_t position(std::size_t bucket) const { return positions_[bucket]; }
  const std::vector<int>& buckets() const { return order_; }

  /// Until it is agreed: this bucket has finished next on this rank.
  void observe(std::size_t bucket) {
    if (!agreed_) observed_.push_back(static_cast<int>(bucket));
  }
  void forget_observed() { observed_.clear(); }
  bool agreed() const { return agreed_; }
  /// Collective. It becomes the order in which rank 0's buckets finished, then what did not finish there.
  void agree(comm::Communicator& world);

 private:
  void set_positions();

  std::vector<int> order_, observed_;
  std::vector<std::size_t> positions_;  // by bucket
  bool agreed_ = false;
};

}  // namespace tessera::fsdp
