#include "fsdp/grads/gradient_slots.h"

#include <algorithm>

#include "base/gradient_ring.h"

namespace tessera::fsdp {
namespace {

constexpr std::int64_t kPage = 4096;

std::int64_t round_to_page(std::int64_t n) {
  return (n + kPage - 1) / kPage * kPage;
}

}  // namespace

GradientSlots::GradientSlots(std::vector<SlotUser> users) : users_(std::move(users)), in_ring_(users_.size()) {
  std::vector<std::int64_t> sizes;
  for (const auto& u : users_)
    if (u.takes_turns && !u.opens_early) sizes.push_back(round_to_page(u.wide_bytes));
  const auto ring = ring_size(std::move(sizes));
  for (std::size_t i = 0; i < users_.size(); ++i)
    in_ring_[i] = users_[i].takes_turns && round_to_page(users_[i].wide_bytes) <= ring;

  // What outlives a backward comes first, at places that both layouts share.
  std::int64_t lasting = 0;
  for (std::size_t i = 0; i < users_.size(); ++i)
    if (keeps_sum(i)) lasting += bytes_of(i, SlotWidth::kWide);
  wide_ = make_layout(SlotWidth::kWide, lasting);
  narrow_ = make_layout(SlotWidth::kNarrow, lasting);
}

bool GradientSlots::narrow(std::size_t user, SlotWidth width) const {
  return width == SlotWidth::kNarrow && !keeps_sum(user);
}

std::int64_t GradientSlots::bytes_of(std::size_t user, SlotWidth width) const {
  return round_to_page(narrow(user, width) ? users_[user].narrow_bytes : users_[user].wide_bytes);
}

GradientSlots::Layout GradientSlots::make_layout(SlotWidth width, std::int64_t lasting_bytes) const {
  Layout l;
  l.slots.resize(users_.size());
  std::int64_t lasting = 0, passing = lasting_bytes, largest_turn = 0;
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < users_.size(); ++i) {
    const auto bytes = bytes_of(i, width);
    if (!in_ring_[i]) {
      auto& end = keeps_sum(i) ? lasting : passing;
      l.slots[i].offset = end;
      end += bytes;
    } else {
      largest_turn = std::max(largest_turn, bytes);
      if (!users_[i].opens_early) sizes.push_back(bytes);
    }
  }
  l.ring_begin = passing;
  l.ring_bytes = std::max(largest_turn, ring_size(std::move(sizes)));
  l.bytes = l.ring_begin + l.ring_bytes;
  return l;
}

void GradientSlots::set_order(const std::vector<int>& order) {
  for (const auto width : {SlotWidth::kWide, SlotWidth::kNarrow}) {
    auto& l = layout(width);
    std::vector<std::size_t> turns;  // positions in the order
    std::vector<std::int64_t> bytes;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto user = static_cast<std::size_t>(order[i]);
      if (!in_ring_[user]) continue;
      turns.push_back(i);
      bytes.push_back(bytes_of(user, width));
    }
    const auto places = place_in_ring(bytes, l.ring_bytes);
    for (std::size_t i = 0; i < turns.size(); ++i) {
      auto& slot = l.slots[static_cast<std::size_t>(order[turns[i]])];
      slot = {l.ring_begin + places[i].offset, -1};
      if (places[i].previous_user >= 0)
        slot.previous_user = static_cast<int>(turns[static_cast<std::size_t>(places[i].previous_user)]);
    }
  }
}

std::int64_t GradientSlots::bytes() const {
  return std::max(wide_.bytes, narrow_.bytes);
}

}  // namespace tessera::fsdp
