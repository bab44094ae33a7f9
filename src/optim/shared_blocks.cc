#include "optim/shared_blocks.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

namespace tessera::optim {
namespace {

bool is_whole(const ParameterSlice& slice, const BlockRange& range, std::int64_t block) {
  const auto begin = range.block * block;
  return range.begin == begin && range.end == std::min(begin + block, c10::multiply_integers(slice.shape));
}

/// Equal for parts of the same block, and for slices with halves of the same byte.
std::string key_of(const ParameterSlice& slice, const BlockRange& range) {
  return slice.name + '@' + std::to_string(range.block);
}
std::string key_of_half(const ParameterSlice& slice, std::int64_t element) {
  return slice.name + '#' + std::to_string(element);
}

}  // namespace

BlockRange Blocks::range_in(const ParameterSlice& slice, std::int64_t block) const {
  return {block, std::max(block * numel, slice.offset), std::min((block + 1) * numel, slice.offset + slice.numel)};
}

std::int64_t Blocks::end(const ParameterSlice& slice) const {
  return slice.numel > 0 ? (slice.offset + slice.numel - 1) / numel + 1 : first(slice);
}

SharedBlocks::SharedBlocks(const std::vector<ParameterSlice>& slices, const std::vector<bool>& packed,
                           const StateCodec& codec, comm::Communicator* group) {
  const Blocks blocks{codec.block()};
  std::string mine;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto first = blocks.first(slices[i]), end = blocks.end(slices[i]);
    if (!packed[i] || first == end) continue;
    const auto add = [&](std::int64_t block) {
      const auto range = blocks.range_in(slices[i], block);
      if (is_whole(slices[i], range, blocks.numel)) return;
      auto& part = parts_.emplace_back();
      part.slice = i;
      part.range = range;
      part.shares_first_byte = range.begin % codec.codes_in_byte() != 0;
      part.shares_last_byte = range.end % codec.codes_in_byte() != 0;
      mine += key_of(slices[i], range) + '\n';
      if (part.shares_first_byte) mine += key_of_half(slices[i], range.begin) + '\n';
      if (part.shares_last_byte) mine += key_of_half(slices[i], range.end - 1) + '\n';
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
  for (auto& part : parts_) {
    const auto& slice = slices[part.slice];
    part.slot = slots.at(key_of(slice, part.range));
    if (part.shares_first_byte)
      part.before = {slots.at(key_of_half(slice, part.range.begin - 1)),
                     slots.at(key_of_half(slice, part.range.begin))};
    if (part.shares_last_byte)
      part.behind = {slots.at(key_of_half(slice, part.range.end)), slots.at(key_of_half(slice, part.range.end - 1))};
  }
  agreed_.resize(slots.size() * kMaxStates);
}

SharedPart* SharedBlocks::find(std::size_t slice, std::int64_t block) {
  const auto before = [](const SharedPart& part, const std::pair<std::size_t, std::int64_t>& place) {
    return std::pair(part.slice, part.range.block) < place;
  };
  const auto place = std::pair(slice, block);
  const auto at = std::lower_bound(parts_.begin(), parts_.end(), place, before);
  return at != parts_.end() && at->slice == slice && at->range.block == block ? &*at : nullptr;
}

void SharedBlocks::agree(comm::Communicator* group) {
  if (agreed_.empty()) return;
  std::fill(agreed_.begin(), agreed_.end(), std::numeric_limits<float>::lowest());
  const auto at = [&](std::size_t slot, std::size_t state) -> float& { return agreed_[slot * kMaxStates + state]; };
  for (const auto& part : parts_) {
    if (!part.updated) continue;
    for (std::size_t k = 0; k < kMaxStates; ++k) {
      const auto* values = part.own_values(k);
      auto& largest = at(part.slot, k);
      for (std::int64_t i = 0; i < part.range.numel(); ++i) largest = std::max(largest, std::abs(values[i]));
      if (part.shares_first_byte) at(part.before.own, k) = values[0];
      if (part.shares_last_byte) at(part.behind.own, k) = values[part.range.numel() - 1];
    }
  }
  if (group && group->size() > 1) {
    auto shared = at::from_blob(agreed_.data(), {static_cast<std::int64_t>(agreed_.size())}, at::kFloat);
    group->all_reduce(shared, comm::ReduceOp::kMax)->wait();
  }
  for (auto& part : parts_)
    for (std::size_t k = 0; k < kMaxStates; ++k) {
      if (part.shares_first_byte) part.values[k][0] = at(part.before.others, k);
      if (part.shares_last_byte) part.own_values(k)[part.range.numel()] = at(part.behind.others, k);
    }
}

}  // namespace tessera::optim
