#include "fsdp/grads/reduction_order.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::fsdp {

ReductionOrder::ReductionOrder(const std::vector<int>& registered) : order_(registered.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](int a, int b) {
    const int of_a = registered[static_cast<std::size_t>(a)], of_b = registered[static_cast<std::size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  set_positions();
}

void ReductionOrder::set_positions() {
  positions_.resize(order_.size());
  for (std::size_t i = 0; i < order_.size(); ++i) positions_[bucket(i)] = i;
}

void ReductionOrder::agree(comm::Communicator& world) {
  for (const int bucket : order_)
    if (std::find(observed_.begin(), observed_.end(), bucket) == observed_.end()) observed_.push_back(bucket);
  comm::Bytes mine(observed_.size() * sizeof(int), '\0');
  std::memcpy(mine.data(), observed_.data(), mine.size());
  const auto agreed = world.broadcast_object(mine, 0);
  TESSERA_CHECK(agreed.size() == mine.size(), "ranks disagree on the number of buckets of gradients");
  std::memcpy(order_.data(), agreed.data(), agreed.size());
  agreed_ = true;
  set_positions();
}

}  // namespace tessera::fsdp
