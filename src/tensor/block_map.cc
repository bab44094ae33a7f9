#include "tensor/block_map.h"

#include <algorithm>

namespace tessera::tensor {

std::int64_t BlockMap::take(std::int64_t size) {
  const auto fit = by_size_.lower_bound({size, 0});
  if (fit != by_size_.end()) {
    const auto [found, offset] = *fit;
    erase(by_offset_.find(offset));
    if (found > size) insert(offset + size, found - size);
    return offset;
  }
  return grow(size);
}

std::int64_t BlockMap::take_high(std::int64_t size) {
  const auto fit =
      std::find_if(by_offset_.rbegin(), by_offset_.rend(), [size](const auto& block) { return block.second >= size; });
  if (fit == by_offset_.rend()) return grow(size);
  const auto [offset, found] = *fit;
  erase(std::prev(fit.base()));
  if (found > size) insert(offset, found - size);
  return offset + found - size;
}

std::int64_t BlockMap::grow(std::int64_t size) {
  std::int64_t offset = end_;
  const auto last = by_offset_.empty() ? by_offset_.end() : std::prev(by_offset_.end());
  if (last != by_offset_.end() && last->first + last->second == end_) offset = last->first;
  if (offset + size > capacity_) return -1;
  if (offset < end_) erase(last);
  end_ = offset + size;
  return offset;
}

void BlockMap::give_back(std::int64_t offset, std::int64_t size) {
  const auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.end() && next->first == offset + size) {
    size += next->second;
    erase(next);
  }
  const auto after = by_offset_.lower_bound(offset);
  if (after != by_offset_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      erase(before);
    }
  }
  insert(offset, size);
}

void BlockMap::insert(std::int64_t offset, std::int64_t size) {
  by_offset_.emplace(offset, size);
  by_size_.emplace(size, offset);
}

void BlockMap::erase(std::map<std::int64_t, std::int64_t>::iterator block) {
  by_size_.erase({block->second, block->first});
  by_offset_.erase(block);
}

}  // namespace tessera::tensor
