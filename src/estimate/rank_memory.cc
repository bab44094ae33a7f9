#include "estimate/rank_memory.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/gradient_ring.h"
#include "base/offloaded_piece.h"

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
  std::int64_t ring() const {
    auto turns = between;
    for (const auto& [name, n] : units) turns.push_back(n);
    return ring_size(std::move(turns));
  }
  /// Tables that no output head is tied to: only rows of them are read.
  std::int64_t looked_up() const {
    return between.empty() ? 0 : std::accumulate(before.begin(), before.end(), std::int64_t{0});
  }
  /// Too large for the ring.
  std::int64_t apart() const {
    std::int64_t numel = 0;
    for (const auto n : before)
      if (n > ring()) numel += n;
    return numel;
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
  s.looked_up = buckets.looked_up();
  whole.erase("");
  for (const auto& [name, numel] : whole) s.largest_unit_whole = std::max(s.largest_unit_whole, numel);
  for (const auto& [name, numel] : buckets.units) s.largest_unit_trainable = std::max(s.largest_unit_trainable, numel);
  s.largest_leaf = buckets.largest();
  s.ring = buckets.ring();
  s.root_rest = buckets.rest;
  s.tables_apart = buckets.apart();
  return s;
}

std::int64_t rank_bytes(const ModelSizes& s, const RankJob& job) {
  const bool whole = job.strategy == config::ShardingStrategy::kNoShard;
  const bool kept = job.strategy != config::ShardingStrategy::kFullShard;  // gathered from forward to backward
  const std::int64_t slices = whole ? 1 : job.ranks, compute = job.low_precision ? 2 : 4;
  const bool narrow_tables = job.low_precision && job.ranks > 1;
  const std::int64_t slots = compute * s.ring + (narrow_tables ? 2 : 4) * s.tables_apart + 4 * s.root_rest;
  const std::int64_t gradients = 4 * s.trainable / slices;
  const std::int64_t masters = !job.low_precision ? 0 : job.whole_masters ? gradients : gradients / 2;
  const std::int64_t trainable = compute * s.trainable / slices;
  // What is mapped is one copy for all ranks of the host; what is cast, in small pieces, lies in slices.
  const std::int64_t frozen = compute * s.frozen_mapped / job.ranks + compute * s.frozen_cast / slices;
  const std::int64_t in_slots = whole ? 0 : 4 * (s.root_rest + (narrow_tables ? 0 : s.tables_apart)) / slices;
  const std::int64_t sums = gradients - in_slots;  // those that need memory of their own
  if (!job.on_disk) return trainable + masters + frozen + 2 * gradients + sums + slots;
  // Sums come in backward and leave after the optimizer's step. What was gathered leaves, unit by unit, as they come,
  // but for the root and for what is whole on every rank.
  const std::int64_t weights = trainable + frozen - compute * s.looked_up / slices;
  const std::int64_t root = compute * (s.root_whole - s.looked_up) / job.ranks;
  const std::int64_t units = 2 * compute * s.largest_unit_whole / job.ranks;
  const std::int64_t their_sums = 2 * 4 * s.largest_unit_trainable / slices;
  const std::int64_t forward = kept ? weights : root + units;
  const std::int64_t backward = sums + (whole ? weights : root + std::max<std::int64_t>(0, units - their_sums));
  // The master and two moments of a piece at a time; where all is whole, the weights beside them, masters among them
  // unless they are apart.
  const std::int64_t piece = std::min(s.largest_leaf / slices, kOffloadedPiece);
  const std::int64_t update = sums + 3 * 4 * piece + (whole ? weights - (job.low_precision ? 0 : 4 * piece) : 0);
  return slots + std::max({forward, backward, update});
}

}  // namespace tessera::estimate
