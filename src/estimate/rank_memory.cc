#include "estimate/rank_memory.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/cpu_level.h"
#include "base/gradient_ring.h"
#include "base/offloaded_piece.h"
#include "base/upload_ring.h"
#include "estimate/part_names.h"

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
  std::map<std::string, std::int64_t> whole, packed;
  for (const auto& p : parameters) {
    const auto unit = unit_of(p.name);
    if (p.packed_bytes > 0) {
      s.packed += p.numel;
      (p.stored_as_computed ? s.packed_mapped_bytes : s.packed_read_bytes) += p.packed_bytes;
      packed[unit] += p.packed_bytes;
      continue;
    }
    (p.trainable ? s.trainable : p.stored_as_computed ? s.frozen_mapped : s.frozen_cast) += p.numel;
    whole[unit] += p.numel;
    if (!p.trainable) continue;
    s.state_bytes += p.state_bytes < 0 ? 8 * p.numel : p.state_bytes;
    s.own_state_bytes += p.own_state_bytes;
    s.own_update_bytes += p.own_update_bytes;
    if (unit.empty()) s.root_trainable += p.numel;
    if (unit.starts_with("encoder.")) s.encoder_trainable += p.numel;
    buckets.add(unit, p.numel);
  }
  for (const auto& [name, bytes] : packed) s.largest_unit_packed_bytes = std::max(s.largest_unit_packed_bytes, bytes);
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

std::int64_t program_bytes(std::int64_t ranks_of_host, bool forked) {
  constexpr std::int64_t kMiB = 1 << 20, kFiles = 86 * kMiB, kAlone = 90 * kMiB, kOwn = 20 * kMiB, kShared = 56 * kMiB;
  return kFiles / ranks_of_host + (forked && ranks_of_host > 1 ? kOwn + kShared / ranks_of_host : kAlone);
}

std::int64_t RankPlan::total() const {
  std::int64_t bytes = 0;
  for (const auto& part : parts) bytes += part.bytes;
  return bytes;
}

namespace {

/// Sizes of the parts, in bytes of a rank; which of them are there at once depends on the phase.
struct Parts {
  Parts(const ModelSizes& s, const RankJob& job);

  bool whole, kept, copies;      // on every rank; gathered from forward to backward; gathers copy
  std::int64_t slices, compute;  // ranks that share a copy; bytes of an element
  std::int64_t trainable, masters, frozen, packed, state, sums, slots, gathered;
  std::int64_t accumulated;          // gradients of earlier forwards, unsharded
  std::int64_t tables_in_slots = 0;  // elements of large tables that are summed where their gradients are made
  std::int64_t head_apart;           // the head's gradient, which a loss makes before it may be added to those
  bool sums_stay;                    // those of earlier forwards, too, in memory of their own
  ActivationBytes activations, encoder;
};

Parts::Parts(const ModelSizes& s, const RankJob& job) {
  using config::ShardingStrategy;
  whole = job.strategy == ShardingStrategy::kNoShard;
  kept = job.strategy == ShardingStrategy::kShardGradOp || job.strategy == ShardingStrategy::kHybridShardZero2 || whole;
  const bool hybrid =
      job.strategy == ShardingStrategy::kHybridShard || job.strategy == ShardingStrategy::kHybridShardZero2;
  copies = job.hosts > 1 && !hybrid && !whole;
  slices = whole ? 1 : copies ? std::int64_t{job.ranks} * job.hosts : job.ranks;
  compute = job.low_precision ? 2 : 4;
  const bool narrow_tables = job.low_precision && job.ranks > 1;
  const auto& accumulation = job.batch.accumulation;
  const bool syncs_beside_computation = job.for_device && !copies && !hybrid && !whole;  // as the Trainer asks
  sums_stay =
      accumulation == Accumulation::kSharded || (accumulation == Accumulation::kUnsharded && syncs_beside_computation);
  accumulated = accumulation == Accumulation::kUnsharded && !sums_stay ? compute * s.trainable : 0;
  const std::int64_t all_gradients = 4 * s.trainable / slices;
  trainable = (copies ? 4 : compute) * s.trainable / slices;
  masters = !job.low_precision || copies ? 0 : job.whole_masters ? all_gradients : all_gradients / 2;
  // What is mapped is one copy for all ranks of the host; what is cast, in small pieces, lies in slices.
  frozen = compute * s.frozen_mapped / job.ranks + compute * s.frozen_cast / slices;
  packed = s.packed_mapped_bytes / job.ranks + s.packed_read_bytes / slices;
  state = s.state_bytes / slices + s.own_state_bytes;
  const bool widens = job.low_precision && (job.whole_masters || !multiplies_bfloat16());  // whole_masters: fp16
  const auto products = widens                                        ? Products::kWidened
                        : !job.low_precision && !multiplies_float32() ? Products::kTiles
                        : !job.low_precision && s.packed > 0          ? Products::kTilesOfPacked
                                                                      : Products::kLibrary;
  auto shape = job.activations;
  const std::int64_t head = shape.classes * shape.hidden;
  shape.head_trains = s.root_trainable >= head;
  head_apart = accumulated > 0 && shape.head_trains ? compute * head : 0;
  activations = activation_bytes(shape, job.adapters, job.batch, compute, products);
  if (job.encoder.blocks > 0)
    encoder = activation_bytes(job.encoder, job.encoder_adapters, job.batch.of_encoder(), compute, products);
  if (copies) {
    // The root, two units and one that is prefetched (of what is not mapped), and the gradients of two units. All of
    // it where units stay gathered until backward.
    const bool all_mapped = s.frozen_cast == 0 && s.trainable < s.frozen_mapped + s.packed;
    const std::int64_t unit = all_mapped ? s.largest_unit_trainable : s.largest_unit_whole;
    gathered = compute * ((all_mapped ? s.root_rest : s.root_whole) + 3 * unit) +
               (s.packed_read_bytes > 0 ? 3 * s.largest_unit_packed_bytes : 0);
    if (kept) gathered = compute * (s.trainable + s.frozen_cast) + s.packed_read_bytes;
    slots = 4 * (2 * s.largest_unit_trainable + s.root_rest + s.tables_apart);
    sums = all_gradients;
    return;
  }
  gathered = 0;
  slots = compute * s.ring + (narrow_tables ? 2 : 4) * s.tables_apart + 4 * s.root_rest;
  tables_in_slots = narrow_tables ? 0 : s.tables_apart;
  const std::int64_t wide_slots = 4 * (s.root_rest + tables_in_slots);
  const bool all_apart = (whole && job.ranks * job.hosts > 1) || sums_stay;
  sums = all_gradients - (all_apart ? 0 : wide_slots / slices);  // those that need memory of their own
}

struct Phase {
  const char* name;
  std::vector<MemoryPart> parts;
};

RankPlan worst_of(std::vector<Phase> phases) {
  RankPlan worst;
  for (auto& phase : phases) {
    RankPlan plan;
    plan.phase = phase.name;
    for (const auto& part : phase.parts)
      if (part.bytes > 0) plan.parts.push_back(part);
    if (!worst.phase[0] || plan.total() > worst.total()) worst = std::move(plan);
  }
  return worst;
}

constexpr const char *kMasters = "their masters beside 16 bits", *kSlots = "gradients on their way",
                     *kUnits = "units in use, from the disk", *kPiece = "a piece of the update",
                     *kRing = "pinned memory on the way to the GPU";

std::int64_t more_than(std::int64_t a, std::int64_t b) {
  return std::max<std::int64_t>(0, a - b);
}

RankPlan plan_in_memory(const Parts& p, const ModelSizes& s) {
  const std::vector<MemoryPart> always = {{kTrained, p.trainable}, {kMasters, p.masters}, {kFrozen, p.frozen},
                                          {kPacked, p.packed},     {kState, p.state},     {kSlots, p.slots},
                                          {kGathered, p.gathered}};
  const auto with = [&](std::vector<MemoryPart> more) {
    more.insert(more.begin(), always.begin(), always.end());
    return more;
  };
  const auto &a = p.activations, &e = p.encoder;
  const std::int64_t kept = a.kept + e.kept;
  // Sums come as activations go, block by block: before the last block's backward those of heads are there, in the
  // first block's its own and those of tables are not yet. A tied head's may have no memory but its slot.
  const std::int64_t heads = more_than(s.root_trainable, s.root_rest + std::max(s.looked_up, p.tables_in_slots));
  const std::int64_t tables = more_than(s.looked_up, s.tables_apart);
  const std::int64_t before = p.sums_stay ? p.sums : 0;
  const std::int64_t first_sums = std::max(before, std::min(p.sums, 4 * heads / p.slices));
  const auto all_but = [&](std::int64_t numel) {
    return p.sums - std::min(p.sums - first_sums, 4 * (tables + numel) / p.slices);
  };
  return worst_of(
      {{"update", with({{kSums, p.sums}, {kPiece, s.own_update_bytes}})},
       {"forward",
        with({{kAccumulated, p.accumulated + p.head_apart}, {kSums, before}, {kKept, kept}, {kLoss, a.loss}})},
       {"backward",
        with(
            {{kAccumulated, p.accumulated + p.head_apart}, {kSums, first_sums}, {kKept, kept}, {kWorking, a.working}})},
       // Of an encoder: its last block, and its first. Of other models the first block.
       {"backward", with({{kSums, e.kept > 0 ? all_but(s.encoder_trainable) : 0},
                          {kKept, e.kept},
                          {kWorking, e.kept > 0 ? e.working : 0}})},
       {"backward", with({{kSums, all_but(s.largest_unit_trainable)},
                          {kKept, e.kept > 0 ? e.first : a.first},
                          {kWorking, e.kept > 0 ? e.working : a.working}})}});
}

RankPlan plan_on_disk(const Parts& p, const ModelSizes& s, const RankJob& job) {
  // Sums come in backward and leave after the optimizer's step. What was gathered leaves, unit by unit, as they come,
  // but for the root and for what is whole on every rank.
  const std::int64_t weights = p.trainable + p.frozen + p.packed - p.compute * s.looked_up / p.slices;
  const std::int64_t root = p.compute * (s.root_whole - s.looked_up) / job.ranks;
  const std::int64_t units = 2 * (p.compute * s.largest_unit_whole + s.largest_unit_packed_bytes) / job.ranks;
  const std::int64_t their_sums = 2 * 4 * s.largest_unit_trainable / p.slices;
  const std::int64_t forward = p.kept ? weights : root + units;
  const std::int64_t backward = p.whole ? weights : root + more_than(units, their_sums);
  // The master and two moments of a piece at a time; where all is whole, the weights beside them, masters among them
  // unless they are apart.
  const std::int64_t piece = std::min(s.largest_leaf / p.slices, kOffloadedPiece);
  const std::int64_t update = 3 * 4 * piece + (p.whole ? weights - (job.low_precision ? 0 : 4 * piece) : 0);
  // Where units stay gathered until backward, sums do not take the memory that activations leave.
  const auto& a = p.activations;
  const std::int64_t kept = a.kept + p.encoder.kept, working = std::max(a.working, p.encoder.working);
  const std::int64_t left = p.kept ? kept : more_than(kept, p.sums);
  return worst_of({{"update",
                    {{kSlots, p.slots},
                     {kGathered, p.gathered},
                     {kSums, p.sums},
                     {kPiece, update + s.own_update_bytes},
                     {kKept, p.kept ? kept : 0},
                     {kWorking, p.kept ? working : 0},
                     {kState, s.own_state_bytes}}},
                   {"forward",
                    {{kSlots, p.slots},
                     {kGathered, p.gathered},
                     {kAccumulated, p.accumulated + p.head_apart},
                     {kSums, p.sums_stay ? p.sums : 0},
                     {kUnits, forward},
                     {kState, s.own_state_bytes},
                     {kKept, kept},
                     {kLoss, a.loss}}},
                   {"backward",
                    {{kSlots, p.slots},
                     {kGathered, p.gathered},
                     {kAccumulated, more_than(p.accumulated, p.sums)},
                     {kSums, p.sums},
                     {kUnits, backward},
                     {kState, s.own_state_bytes},
                     {kKept, left},
                     {kWorking, working}}}});
}

}  // namespace

RankPlan plan_rank(const ModelSizes& sizes, const RankJob& job) {
  const Parts parts(sizes, job);
  auto plan = job.on_disk ? plan_on_disk(parts, sizes, job) : plan_in_memory(parts, sizes);
  const bool pageable = job.on_disk || parts.copies || sizes.frozen_mapped + sizes.packed_mapped_bytes > 0;
  if (job.for_device && pageable) plan.parts.push_back({kRing, kUploadRingBytes});
  return plan;
}

std::int64_t rank_bytes(const ModelSizes& sizes, const RankJob& job) {
  return plan_rank(sizes, job).total();
}

}  // namespace tessera::estimate
