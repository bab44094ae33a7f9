#include "estimate/rank_memory.h"

#include <algorithm>
#include <map>

namespace tessera::estimate {

std::string unit_of(const std::string& parameter) {
  const auto digit = parameter.find_first_of("0123456789");
  return digit == std::string::npos ? "" : parameter.substr(0, parameter.find('.', digit));
}

ModelSizes sizes_of(const std::vector<SizedParameter>& parameters) {
  ModelSizes s;
  std::map<std::string, std::int64_t> trainable, whole;
  for (const auto& p : parameters) {
    (p.trainable ? s.trainable : p.stored_as_computed ? s.frozen_mapped : s.frozen_cast) += p.numel;
    whole[unit_of(p.name)] += p.numel;
    if (!p.stored_as_computed) s.largest_cast = std::max(s.largest_cast, p.numel);
    if (!p.trainable) continue;
    trainable[unit_of(p.name)] += p.numel;
    s.largest_trainable = std::max(s.largest_trainable, p.numel);
  }
  s.root = trainable[""];
  s.root_whole = whole[""];
  trainable.erase("");
  whole.erase("");
  s.units = static_cast<std::int64_t>(trainable.size());
  for (const auto& [name, numel] : trainable) s.largest_unit = std::max(s.largest_unit, numel);
  for (const auto& [name, numel] : whole) s.largest_unit_whole = std::max(s.largest_unit_whole, numel);
  return s;
}

std::int64_t rank_bytes(const ModelSizes& s, const RankJob& job) {
  const bool whole = job.strategy == config::ShardingStrategy::kNoShard;
  const bool kept = job.strategy != config::ShardingStrategy::kFullShard;  // gathered from forward to backward
  const std::int64_t slices = whole ? 1 : job.ranks, compute = job.low_precision ? 2 : 4;
  const std::int64_t slots = 4 * (s.root + std::min<std::int64_t>(3, s.units) * s.largest_unit);
  const std::int64_t gradients = 4 * s.trainable / slices, masters = job.low_precision ? gradients : 0;
  const std::int64_t trainable = compute * s.trainable / slices;
  // What is mapped is one copy for all ranks of the host; what is cast lies in slices.
  const std::int64_t frozen = compute * s.frozen_mapped / job.ranks + compute * s.frozen_cast / slices;
  const std::int64_t cast = 4 * s.largest_cast / slices;     // read while loading
  const std::int64_t dense = compute * s.largest_trainable;  // the embedding's gradient
  const std::int64_t replicas = whole ? slots : 0;           // sums on their way
  const std::int64_t leaf = std::max(s.root, s.largest_unit) / slices;
  if (!job.on_disk) {
    const auto loaded = trainable + masters + frozen + cast;
    return std::max(loaded, trainable + masters + frozen + 3 * gradients + slots + dense + replicas);
  }
  const std::int64_t units =
      compute * (s.root_whole + 2 * s.largest_unit_whole) / (s.largest_cast > 0 ? slices : job.ranks);
  const std::int64_t forward = kept ? trainable + frozen : units;
  const std::int64_t update = 3 * 4 * leaf + (job.low_precision ? 2 * leaf : 0) + (whole ? trainable + masters : 0);
  return gradients + slots + std::max(forward + dense, update);
}

}  // namespace tessera::estimate
