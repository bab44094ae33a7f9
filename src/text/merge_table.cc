#include "text/merge_table.h"

#include <algorithm>
#include <bit>

namespace tessera::text {

void MergeTable::reserve(std::size_t count) {
  if (slots_.size() < count * 2) grow(std::bit_ceil(std::max<std::size_t>(count * 2, 2)));
}

void MergeTable::grow(std::size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  shift_ = 64 - std::countr_zero(slots);
  for (const auto& slot : old) {
    if (slot.key == kFree) continue;
    auto at = start(slot.key);
    while (slots_[at].key != kFree) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  if (slots_.size() < (count_ + 1) * 2) grow(std::bit_ceil((count_ + 1) * 4));
  const auto key = pack(left, right);
  auto at = start(key);
  while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  if (slots_[at].key == kFree) ++count_;
  slots_[at] = {key, merge};
}

}  // namespace tessera::text
