#include "estimate/rank_memory.h"

#include <algorithm>
#include <map>

#include "base/gradient_ring.h"

namespace tessera::estimate {
namespace {

/// What is reduced at once, in trainable elements.
struct Buckets {
  std::int64_t rest = 0;                      // of the root
  std::vector<std::int64_t> before, between;  // large ones of the root: registered before the units, or later
  std::map<std::string, std::int64_t> units;

  void add(const std::string& unit, std::int64_t numel) {
    if (!unit.empty())
      units[unit] += numel;
    else if (numel < kAloneNumel)
      rest += numel;
    else
      (units.empty() ? before : between).push_back(numel);
  }
  std::int64_t largest() const {
    auto numel = rest;
    for (const auto n : before) numel = std::max(numel, n);
    for (const auto n : between) numel = std::max(numel, n);
    for (const auto& [name, n] : units) numel = std::max(numel, n);
    return numel;
  }
  std::int64_t ring_bytes(std::int64_t element_of_units) const {
    std::vector<std::int64_t> turns;
    for (const auto n : between) turns.push_back(4 * n);
    for (const auto& [name, n] : units) turns.push_back(element_of_units * n);
    return ring_size(std::move(turns));
  }
  /// The root's rest has a slot of its own, and what is too large for the ring.
  std::int64_t own_slots_bytes() const {
    auto own = 4 * rest;
    const auto turns = ring_bytes(4);
    for (const auto n : before)
      if (4 * n > turns) own += 4 * n;
    return own;
  }
};

}  // namespace

std::string unit_of(const std::string& parameter) {
  const auto digit = parameter.find_first_of("0123456789");
  return digit == std::string::npos ? "" : parameter.substr(0, parameter.find('.', digit));
}

ModelSizes sizes_of(const std::vector<SizedParameter>& parameters) {
  ModelSizes s;
  Buckets buckets;
  std::map<std::string, std::int64_t> whole;
  for (const auto& p : parameters) {
    (p.trainable ? s.trainable : p.stored_as_computed ? s.frozen_mapped : s.frozen_cast) += p.numel;
    const auto unit = unit_of(p.name);
    whole[unit] += p.numel;
    if (p.trainable) buckets.add(unit, p.numel);
  }
  s.root_whole = whole[""];
  whole.erase("");
  for (const auto& [name, numel] : whole) s.largest_unit_whole = std::max(s.largest_unit_whole, numel);
  s.largest_leaf = buckets.largest();
  s.ring_bytes = buckets.ring_bytes(4);
  s.narrow_ring_bytes = buckets.ring_bytes(2);
  s.own_slots_bytes = buckets.own_slots_bytes();
  return s;
}

std::int64_t rank_bytes(const ModelSizes& s, const RankJob& job) {
  const bool whole = job.strategy == config::ShardingStrategy::kNoShard;
  const bool kept = job.strategy != config::ShardingStrategy::kFullShard;  // gathered from forward to backward
  const std::int64_t slices = whole ? 1 : job.ranks, compute = job.low_precision ? 2 : 4;
  const std::int64_t slots = (job.low_precision ? s.narrow_ring_bytes : s.ring_bytes) + s.own_slots_bytes;
  const std::int64_t gradients = 4 * s.trainable / slices, masters = job.low_precision ? gradients : 0;
  const std::int64_t trainable = compute * s.trainable / slices;
  // What is mapped is one copy for all ranks of the host; what is cast, in small pieces, lies in slices.
  const std::int64_t frozen = compute * s.frozen_mapped / job.ranks + compute * s.frozen_cast / slices;
  const std::int64_t in_slots = whole ? 0 : s.own_slots_bytes / slices;        // sums that need no memory of their own
  const std::int64_t replicas = whole ? s.ring_bytes + s.own_slots_bytes : 0;  // sums on their way
  const std::int64_t leaf = s.largest_leaf / slices;
  if (!job.on_disk) return trainable + masters + frozen + 3 * gradients - in_slots + slots + replicas;
  const std::int64_t units = compute * (s.root_whole + 2 * s.largest_unit_whole) / job.ranks;
  const std::int64_t forward = kept ? trainable + frozen : units;
  // The master and two moments of a slice at a time; where all is whole, the weights beside them, masters among them
  // unless they are apart.
  const std::int64_t beside = whole ? trainable - (job.low_precision ? 0 : 4 * leaf) : 0;
  const std::int64_t update = 3 * 4 * leaf + beside;
  return gradients - in_slots + slots + replicas + std::max(forward, update);
}

}  // namespace tessera::estimate
