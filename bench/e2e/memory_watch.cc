#include "e2e/memory_watch.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "report/memory.h"

namespace tessera::bench {
namespace {

/// Block "…layers.7." of a name; the root's parameters have none.
std::string unit_of(const std::string& name) {
  const auto digit = name.find_first_of("0123456789");
  return digit == std::string::npos ? "" : name.substr(0, name.find('.', digit));
}

struct Sizes {
  std::int64_t trainable = 0, frozen = 0;              // elements
  std::int64_t root = 0, largest_unit = 0, units = 0;  // trainable elements
  std::int64_t root_whole = 0, unit_whole = 0;         // frozen ones included
  std::int64_t largest = 0, largest_parameter = 0;     // of one parameter: trainable, any
};

Sizes sizes_of(const fsdp::FullyShardedDataParallel& model) {
  Sizes s;
  std::map<std::string, std::int64_t> trainable, whole;
  for (const auto& shard : model.shards()) {
    std::int64_t numel = 1;
    for (const auto n : shard.shape) numel *= n;
    (shard.trainable ? s.trainable : s.frozen) += numel;
    whole[unit_of(shard.name)] += numel;
    s.largest_parameter = std::max(s.largest_parameter, numel);
    if (!shard.trainable) continue;
    trainable[unit_of(shard.name)] += numel;
    s.largest = std::max(s.largest, numel);
  }
  s.root = trainable[""];
  s.root_whole = whole[""];
  trainable.erase("");
  whole.erase("");
  s.units = static_cast<std::int64_t>(trainable.size());
  for (const auto& [name, numel] : trainable) s.largest_unit = std::max(s.largest_unit, numel);
  for (const auto& [name, numel] : whole) s.unit_whole = std::max(s.unit_whole, numel);
  return s;
}

}  // namespace

MemoryWatch::MemoryWatch() : base_(report::process_memory().proportional_bytes), peak_(base_) {
  thread_ = std::thread([this] {
    while (!done_) {
      peak_ = std::max(peak_.load(), report::process_memory().proportional_bytes);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
}

MemoryWatch::~MemoryWatch() {
  done_ = true;
  thread_.join();
}

std::int64_t expected_bytes(const fsdp::FullyShardedDataParallel& model, const MemoryJob& job) {
  const auto s = sizes_of(model);
  const bool whole = job.strategy == fsdp::ShardingStrategy::kNoShard;
  const bool kept = job.strategy != fsdp::ShardingStrategy::kFullShard;  // gathered from forward to backward
  const std::int64_t slices = whole ? 1 : job.ranks, compute = job.bfloat16 ? 2 : 4;
  const std::int64_t slots = 4 * (s.root + std::min<std::int64_t>(3, s.units) * s.largest_unit);
  const std::int64_t gradients = 4 * s.trainable / slices, masters = job.bfloat16 ? gradients : 0;
  const std::int64_t trainable = compute * s.trainable / slices;
  // fp32 is read from the mapped file, of which all ranks of the host share one copy; bf16 is a cast copy.
  const std::int64_t frozen = compute * s.frozen / (job.bfloat16 ? slices : job.ranks);
  const std::int64_t cast = job.bfloat16 ? 4 * s.largest_parameter / slices : 0;  // read while loading
  const std::int64_t dense = compute * s.largest;                                 // the embedding's gradient
  const std::int64_t replicas = whole ? slots : 0;                                // sums on their way
  const std::int64_t leaf = std::max(s.root, s.largest_unit) / slices;
  if (!job.on_disk) {
    const auto loaded = trainable + masters + frozen + cast;
    return std::max(loaded, trainable + masters + frozen + 3 * gradients + slots + dense + replicas);
  }
  const std::int64_t units = compute * (s.root_whole + 2 * s.unit_whole) / (job.bfloat16 ? slices : job.ranks);
  const std::int64_t forward = kept ? trainable + frozen : units;
  const std::int64_t update = 3 * 4 * leaf + (job.bfloat16 ? 2 * leaf : 0) + (whole ? trainable + masters : 0);
  return gradients + slots + std::max(forward + dense, update);
}

}  // namespace tessera::bench
