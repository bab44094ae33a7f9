#include "estimate/device_memory.h"

#include <algorithm>
#include <map>
#include <string>

#include "estimate/part_names.h"

namespace tessera::estimate {
namespace {

/// cuBLAS has a workspace for each thread that calls it, 32 MiB on GPUs since Hopper: of forward, and of backward.
constexpr std::int64_t kWorkspaces = 2 * (32 << 20);
constexpr std::int64_t kLogits = 1 << 27;    // elements that nn/composite/composite.h makes at a time, and where the
constexpr std::int64_t kPiecesOfWeight = 4;  // head trains a part of the rows (composite_cross_entropy.cc)

constexpr const char *kHead = "gradient of the head", *kLibrary = "cuBLAS";

/// Projections with the same module above them.
struct ProjectionGroup {
  std::int64_t given = 0;  // to the last projection
  std::int64_t made = 0;   // by the others
};

struct ProjectionGroups {
  std::map<std::string, ProjectionGroup> of;
  void add(const ModelTensor& t) {
    const auto module = module_of(t.name);
    const auto [inputs, outputs] = sides_of(t);
    auto& group = of[module.substr(0, module.rfind('.'))];
    closes_branch(module) ? group.given = std::max(group.given, inputs) : group.made += outputs;
  }
  ProjectionGroup largest() const {
    ProjectionGroup out;
    for (const auto& [name, group] : of) {
      out.given = std::max(out.given, group.given);
      out.made = std::max(out.made, group.made);
    }
    return out;
  }
};

}  // namespace

DeviceShape device_shape(const std::vector<ModelTensor>& tensors) {
  DeviceShape out;
  ProjectionGroups attention, others;
  std::map<std::string, std::int64_t> heads, of_experts;
  std::int64_t table = 0;
  for (const auto& t : tensors) {
    if (t.shape.size() != 2) continue;
    const auto unit = unit_of(t.name);
    if (unit.empty()) {
      auto& numel = is_head(t.name) ? out.head_numel : table;
      numel = std::max(numel, t.numel());
    } else if (is_linear(t)) {
      const auto experts = of_any_expert(t.name);
      if (!experts.empty()) out.expert_rows = t.experts_per_token;
      out.largest_matrix = std::max(out.largest_matrix, experts.empty() ? t.numel() : of_experts[experts] += t.numel());
      heads[unit] += t.heads;
      (is_in_attention(module_of(t.name)) ? attention : others).add(t);
    }
  }
  out.tied = out.head_numel == 0;
  if (out.tied) out.head_numel = table;
  for (const auto& [unit, count] : heads) {
    out.heads += count;
    out.heads_largest = std::max(out.heads_largest, count);
  }
  const auto a = attention.largest(), f = others.largest();
  out.inner = f.given;
  out.made = f.made;
  out.attended = a.given;
  out.keys = std::max<std::int64_t>(0, a.made - a.given) / 2;
  return out;
}

bool head_trains(const DeviceShape& shape, const std::vector<SizedParameter>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [&](const SizedParameter& p) {
    return p.trainable && p.packed_bytes == 0 && unit_of(p.name).empty() && p.numel == shape.head_numel &&
           (shape.tied || is_head(p.name));
  });
}

namespace {

/// Sizes of the parts, in bytes; which of them are there at once depends on the moment.
struct DeviceParts {
  DeviceParts(const ModelSizes& s, const DeviceJob& job);

  std::int64_t trained = 0, state = 0, frozen = 0, packed = 0, gradients = 0, unit_gradients = 0;
  std::int64_t accumulated = 0;                             // gradients of earlier forwards, unsharded
  std::int64_t root = 0, units = 0;                         // gathered: in a step, and while a block computes
  std::int64_t pinned = 0, to_backward = 0;                 // of these: always, and from forward to backward
  std::int64_t kept = 0, block = 0, working = 0, loss = 0;  // block: what one keeps
  std::int64_t head_waits = 0, head_sum = 0,
               head_last = 0;  // gradients of the head: until, and when, the table's comes

 private:
  struct OfStack {
    std::int64_t kept = 0, block = 0;
  };
  void add_activations(const DeviceJob& job);
  OfStack kept_by(ActivationShape a, AdapterActivations adapters, const BatchShape& batch) const;
  void add_head(const ModelSizes& s, const DeviceJob& job);
  std::int64_t working_of_block(const DeviceJob& job) const;

  std::int64_t compute_;   // bytes of an element
  std::int64_t unpacked_;  // the largest packed matrix
  const DeviceShape& shape_;
};

/// Of the stack that is given more.
std::int64_t most_tokens(const DeviceJob& job) {
  const auto tokens = job.batch.tokens();
  return job.encoder.blocks > 0 ? std::max(tokens, job.batch.of_encoder().tokens()) : tokens;
}

/// With each other: those of a host under hybrid strategies.
int ranks_that_shard(const DeviceJob& job) {
  using config::ShardingStrategy;
  if (job.strategy == ShardingStrategy::kNoShard) return 1;
  const bool hybrid =
      job.strategy == ShardingStrategy::kHybridShard || job.strategy == ShardingStrategy::kHybridShardZero2;
  return hybrid ? job.ranks : job.ranks * job.hosts;
}

DeviceParts::DeviceParts(const ModelSizes& s, const DeviceJob& job)
    : compute_(job.low_precision ? 2 : 4),
      unpacked_(s.packed > 0 ? compute_ * job.shape.largest_matrix : 0),
      shape_(job.shape) {
  using config::ShardingStrategy;
  const bool released = job.strategy == ShardingStrategy::kFullShard || job.strategy == ShardingStrategy::kHybridShard;
  const auto dense = s.trainable + s.frozen_mapped + s.frozen_cast;
  if (job.state_on_host) {
    // A unit is copied when it is gathered, frozen weights too, and the next one while it computes.
    root = compute_ * s.root_whole;
    units = released ? 2 * (compute_ * s.largest_unit_whole + s.largest_unit_packed_bytes)
                     : compute_ * (dense - s.root_whole) + s.packed_mapped_bytes + s.packed_read_bytes;
    unit_gradients = compute_ * 2 * s.largest_unit_trainable;  // a unit's leave while the next one's are made
  } else if (const auto ranks = ranks_that_shard(job); ranks > 1) {
    // Slices of all of it; whole units, frozen weights too, from gather to release, and one that is gathered ahead.
    trained = 4 * s.trainable / ranks;
    state = job.optimizer_on_host ? 0 : s.state_bytes / ranks;
    frozen = compute_ * (s.frozen_mapped + s.frozen_cast) / ranks;
    packed = (s.packed_mapped_bytes + s.packed_read_bytes) / ranks;
    gradients = trained;
    // Contributions in 32 bits, and as many from the peers, until they are summed up.
    unit_gradients = (job.low_precision ? 2 : 0) * s.largest_unit_trainable + 2 * 4 * s.largest_unit_trainable;
    root = compute_ * s.root_whole;
    units = released ? 2 * (compute_ * s.largest_unit_whole + s.largest_unit_packed_bytes)
                     : compute_ * (dense - s.root_whole) + s.packed_mapped_bytes + s.packed_read_bytes;
  } else {
    trained = 4 * s.trainable;
    state = job.optimizer_on_host ? 0 : s.state_bytes;
    frozen = compute_ * (s.frozen_mapped + s.frozen_cast);
    packed = s.packed_mapped_bytes + s.packed_read_bytes;
    gradients = trained;
    // As backward brings it, where that is in fewer bits, and its sum.
    unit_gradients = (job.low_precision ? 2 + 4 : 4) * s.largest_unit_trainable;
    // Where it trains in fewer bits than its master has: the present unit, and one that is cast ahead.
    root = job.low_precision ? compute_ * s.root_trainable : 0;
    units = !job.low_precision ? 0
            : released         ? compute_ * 2 * s.largest_unit_trainable
                               : compute_ * (s.trainable - s.root_trainable);
  }
  const bool stays = job.batch.accumulation == Accumulation::kSharded;
  if (job.batch.accumulation != Accumulation::kNone && !job.state_on_host)
    accumulated = stays ? gradients : compute_ * s.trainable;
  if (!released) to_backward = units;
  if (job.strategy == ShardingStrategy::kNoShard) pinned = root + units;
  add_activations(job);
  add_head(s, job);
}

/// The largest of these moments.
std::int64_t DeviceParts::working_of_block(const DeviceJob& job) const {
  const auto tokens = most_tokens(job), one = tokens * compute_;
  const auto& d = job.shape;
  const auto& a = job.activations;
  // Of the feed-forward layer's last projection: the gradient of its input, that input made again, and, in the same
  // pass, the gradients of what it is made from.
  const auto rows = one * std::max<std::int64_t>(1, d.expert_rows);
  const auto feed_forward = rows * (2 * d.inner + d.made) + job.adapters.working;
  // Of experts, the gradients of two projections and of their inputs.
  const auto experts = d.expert_rows > 0 ? rows * 2 * (d.inner + a.hidden) : 0;
  // Of attention: gradients of its result, of q, k and v, one of q in 32 bits and, where heads share keys, those of k
  // and v for each head. What the feed-forward layer kept is free by then.
  const auto shared = d.keys < d.attended ? 2 * d.attended : 0;
  const auto attention =
      one * (2 * d.attended + 2 * d.keys + shared) + 4 * tokens * d.attended - one * (d.made + a.hidden);
  // Of a product with a packed matrix: that matrix unpacked.
  const auto unpacked = rows * d.inner + unpacked_;
  return std::max({feed_forward, experts, attention, unpacked});
}

void DeviceParts::add_activations(const DeviceJob& job) {
  if (job.batch.tokens() == 0) return;
  const auto decoder = kept_by(job.activations, job.adapters, job.batch);
  const auto encoder = kept_by(job.encoder, job.encoder_adapters, job.batch.of_encoder());
  kept = decoder.kept + encoder.kept;
  block = std::max(decoder.block, encoder.block);
  // Beside it: the gradient that comes in, and the block's output (with checkpointing) or the input of the first block,
  // which is kept beside the norm of it where neither needs a gradient.
  working = working_of_block(job) + most_tokens(job) * compute_ * 2 * job.activations.hidden;
}

DeviceParts::OfStack DeviceParts::kept_by(ActivationShape a, AdapterActivations adapters,
                                          const BatchShape& batch) const {
  if (a.blocks == 0) return {};
  const auto tokens = batch.tokens(), one = tokens * compute_;
  const auto kept_heads = a.device_heads;
  a.heads = a.heads_largest = a.device_heads = 0;
  // Of attention that keeps its probabilities: they are there in 32 bits, too. Half of a decoder's that has an encoder
  // looks at the encoder's tokens.
  const std::int64_t keys = a.of_encoder > 0 ? (batch.length + batch.of_encoder().length) / 2 : batch.length;
  const std::int64_t pair = tokens * keys * (compute_ == 4 ? 4 : compute_ + 4), statistics = 4 * tokens;
  const auto of_block = one * (a.largest - a.hidden) + statistics * shape_.heads_largest +
                        pair * a.device_heads_largest + adapters.largest;
  adapters.unread = adapters.largest_unread = 0;  // FlashAttention keeps what it gives; of experts it was not measured
  auto all = activation_bytes(a, adapters, batch, compute_).kept;
  const auto kept_whole = a.blocks - recomputed_blocks(a, batch);
  all += (statistics * shape_.heads + pair * kept_heads) * kept_whole / a.blocks;
  return {all, of_block};
}

void DeviceParts::add_head(const ModelSizes& s, const DeviceJob& job) {
  const auto tokens = job.batch.tokens(), one = tokens * compute_;
  const auto& a = job.activations;
  const auto numel = job.shape.head_numel;
  if (tokens > 0) {
    auto rows = std::max<std::int64_t>(1, kLogits / std::max<std::int64_t>(1, a.classes));
    if (job.head_trains) rows = std::max(rows, (tokens + kPiecesOfWeight - 1) / kPiecesOfWeight);
    rows = std::min(rows, tokens);
    // The last block's output, its norm, the rows of it that have labels, and their gradient; a piece of logits and the
    // product that goes into the gradient. The weight's gradient is summed up in 32 bits, then rounded.
    loss = one * 4 * a.hidden + compute_ * rows * (a.classes + a.hidden);
    if (job.head_trains) loss = std::max(loss, one * 4 * a.hidden + compute_ * numel) + 4 * numel;
    if (a.whole_logits || a.packed_head) loss = one * 4 * a.hidden + whole_logits_bytes(a, tokens);
  }
  if (!job.head_trains) return;
  // A table's gradient is added to the head's where they are one, and then copied to the sum.
  const auto sum = job.state_on_host ? 0 : 4 * numel;
  head_waits = job.shape.tied || job.state_on_host ? compute_ * numel : sum;
  head_sum = job.shape.tied ? sum : std::min<std::int64_t>(2 * sum, 4 * s.root_trainable);
  head_last = job.shape.tied ? std::max(3 * compute_ * numel, sum + compute_ * numel) : head_sum + compute_ * numel;
}

}  // namespace

RankPlan host_beside_device(const ModelSizes& sizes, const DeviceJob& job, std::int64_t largest) {
  RankPlan start{.parts = {{"a parameter at a time, while the model is read", 4 * largest}}, .phase = "the start"};
  if (!job.optimizer_on_host) return start;
  const auto ranks = ranks_that_shard(job);
  RankPlan update{.parts = {{kTrained, 4 * sizes.trainable / ranks},
                            {kSums, 4 * sizes.trainable / ranks},
                            {kState, sizes.state_bytes / ranks + sizes.own_state_bytes + sizes.own_update_bytes}},
                  .phase = "update"};
  return update.total() > start.total() ? update : start;
}

RankPlan plan_device(const ModelSizes& sizes, const DeviceJob& job) {
  const DeviceParts p(sizes, job);
  struct Moment {
    const char* phase;
    std::vector<MemoryPart> parts;
  };
  const std::int64_t blocks = recomputes_last(job.activations, job.batch) ? p.block : 0;
  // All that was summed up, but what the head and the table still bring.
  const std::int64_t summed = job.state_on_host ? 0 : p.gradients - p.head_sum;
  const std::vector<Moment> moments = {
      {"update", {{kGathered, p.pinned}, {kSums, p.gradients}}},
      {"forward",
       {{kGathered, p.root + p.to_backward}, {kAccumulated, p.accumulated}, {kKept, p.kept}, {kLoss, p.loss}}},
      // The last block's, when all blocks' activations are there; the first one's, when all gradients are.
      {"backward",
       {{kGathered, p.root + p.units},
        {kAccumulated, p.accumulated},
        {kKept, p.kept + blocks},
        {kWorking, p.working},
        {kSums, p.unit_gradients},
        {kHead, p.head_waits}}},
      {"backward",
       {{kGathered, p.root + p.units},
        {kKept, p.block},
        {kWorking, p.working},
        {kSums, summed + (job.state_on_host ? p.unit_gradients : 0)},
        {kHead, p.head_waits}}},
      {"backward", {{kGathered, std::max(p.root, p.pinned)}, {kSums, summed}, {kHead, p.head_last}}}};
  RankPlan worst;
  for (const auto& moment : moments) {
    RankPlan plan;
    plan.phase = moment.phase;
    const std::vector<MemoryPart> always = {
        {kTrained, p.trained}, {kFrozen, p.frozen}, {kPacked, p.packed}, {kState, p.state}, {kLibrary, kWorkspaces}};
    for (const auto* parts : {&always, &moment.parts})
      for (const auto& part : *parts)
        if (part.bytes > 0) plan.parts.push_back(part);
    if (!worst.phase[0] || plan.total() > worst.total()) worst = std::move(plan);
  }
  return worst;
}

}  // namespace tessera::estimate
