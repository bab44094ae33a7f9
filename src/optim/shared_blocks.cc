#include "optim/shared_blocks.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace tessera::optim {
namespace {

bool is_whole(const ParameterSlice& slice, const BlockRange& range) {
  const auto numel = c10::multiply_integers(slice.shape);
  const auto begin = range.block() * kStateBlock;
  return range.begin == begin && range.end == std::min(begin + kStateBlock, numel);
}

/// Equal for parts of the same block.
std::string key_of(const ParameterSlice& slice, const BlockRange& range) {
  return slice.name + '@' + std::to_string(range.block());
}

}  // namespace

BlockRange range_in_block(const ParameterSlice& slice, std::int64_t block) {
  return {std::max(block * kStateBlock, slice.offset), std::min((block + 1) * kStateBlock, slice.offset + slice.numel)};
}

std::int64_t first_block(const ParameterSlice& slice) {
  return slice.offset / kStateBlock;
}

std::int64_t end_block(const ParameterSlice& slice) {
  return slice.numel > 0 ? (slice.offset + slice.numel - 1) / kStateBlock + 1 : first_block(slice);
}

SharedBlocks::SharedBlocks(const std::vector<ParameterSlice>& slices, const std::vector<bool>& packed,
                           comm::Communicator* group) {
  std::string mine;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto first = first_block(slices[i]), end = end_block(slices[i]);
    if (!packed[i] || first == end) continue;
    const auto add = [&](std::int64_t block) {
      const auto range = range_in_block(slices[i], block);
      if (is_whole(slices[i], range)) return;
      auto& part = parts_.emplace_back();
      part.slice = i;
      part.range = range;
      mine += key_of(slices[i], range) + '\n';
    };
    add(first);
    if (end - 1 > first) add(end - 1);
  }
  const std::vector<std::string> all =
      group && group->size() > 1 ? group->all_gather_objects(mine) : std::vector<std::string>{mine};
  std::map<std::string, std::size_t> slots;
  for (const auto& keys : all)
    for (std::size_t at = 0; at < keys.size();) {
      const auto end = keys.find('\n', at);
      slots.emplace(keys.substr(at, end - at), 0);
      at = end + 1;
    }
  std::size_t next = 0;
  for (auto& [key, slot] : slots) slot = next++;
  for (auto& part : parts_) part.slot = slots.at(key_of(slices[part.slice], part.range));
  absmax_.resize(slots.size() * kMaxStates);
}

SharedPart* SharedBlocks::find(std::size_t slice, std::int64_t block) {
  const auto before = [](const SharedPart& part, const std::pair<std::size_t, std::int64_t>& place) {
    return std::pair(part.slice, part.range.block()) < place;
  };
  const auto place = std::pair(slice, block);
  const auto at = std::lower_bound(parts_.begin(), parts_.end(), place, before);
  return at != parts_.end() && at->slice == slice && at->range.block() == block ? &*at : nullptr;
}

void SharedBlocks::agree(comm::Communicator* group) {
  if (absmax_.empty()) return;
  std::fill(absmax_.begin(), absmax_.end(), 0.0f);
  for (const auto& part : parts_) {
    if (!part.updated) continue;
    for (std::size_t k = 0; k < kMaxStates; ++k) {
      auto& largest = absmax_[part.slot * kMaxStates + k];
      for (std::int64_t i = 0; i < part.range.end - part.range.begin; ++i)
        largest = std::max(largest, std::abs(part.values[k][static_cast<std::size_t>(i)]));
    }
  }
  if (!group || group->size() == 1) return;
  auto shared = at::from_blob(absmax_.data(), {static_cast<std::int64_t>(absmax_.size())}, at::kFloat);
  group->all_reduce(shared, comm::ReduceOp::kMax)->wait();
}

}  // namespace tessera::optim
