#pragma once
// Where in a rank's part of shared memory each bucket of gradients lies: see Notes [Slots] and [Dtype of contributions]
// in fsdp/grads/gradient_transport.h. Pure arithmetic.
#include <cstdint>
#include <vector>

#include "fsdp/grads/slot_ring.h"

namespace tessera::fsdp {

/// One backward uses one of the two for all buckets.
enum class SlotWidth {
  kWide,   // contributions in the dtype of reductions
  kNarrow  // as they were computed
};

struct SlotUser {
  std::int64_t wide_bytes = 0, narrow_bytes = 0;
  bool takes_turns = true;   // false: needs a slot of its own
  bool opens_early = false;  // gets one of its own, if it is larger than the ring that the others need
  bool keeps_sum = false;    // a slot of its own is wide in any case, and does not move
};

class GradientSlots {
 public:
  GradientSlots() = default;
  explicit GradientSlots(std::vector<SlotUser> users);

  /// Indices of users; those in the ring take turns in this order.
  void set_order(const std::vector<int>& order);

  bool in_ring(std::size_t user) const { return in_ring_[user]; }
  bool keeps_sum(std::size_t user) const { return !in_ring_[user] && users_[user].keeps_sum; }
  bool narrow(std::size_t user, SlotWidth width) const;
  /// previous_user is a position in the order.
  const RingSlot& at(std::size_t user, SlotWidth width) const { return layout(width).slots[user]; }
  std::int64_t bytes(SlotWidth width) const { return layout(width).bytes; }
  std::int64_t bytes() const;

 private:
  struct Layout {
    std::int64_t ring_begin = 0, ring_bytes = 0, bytes = 0;
    std::vector<RingSlot> slots;  // by user
  };

  std::int64_t bytes_of(std::size_t user, SlotWidth width) const;
  Layout make_layout(SlotWidth width, std::int64_t lasting_bytes) const;
  Layout& layout(SlotWidth width) { return width == SlotWidth::kWide ? wide_ : narrow_; }
  const Layout& layout(SlotWidth width) const { return width == SlotWidth::kWide ? wide_ : narrow_; }

  std::vector<SlotUser> users_;
  std::vector<bool> in_ring_;
  Layout wide_, narrow_;
};

}  // namespace tessera::fsdp
