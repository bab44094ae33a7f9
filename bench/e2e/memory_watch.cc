#include "e2e/memory_watch.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "report/memory.h"

namespace tessera::bench {
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

std::int64_t expected_bytes(const fsdp::FullyShardedDataParallel& model, const estimate::RankJob& job) {
  std::vector<estimate::SizedParameter> parameters;
  for (const auto& shard : model.shards()) {
    std::int64_t numel = 1;
    for (const auto n : shard.shape) numel *= n;
    // The files are in fp32.
    parameters.push_back({shard.name, numel, shard.trainable, !job.low_precision});
  }
  return estimate::rank_bytes(estimate::sizes_of(parameters), job);
}

}  // namespace tessera::bench
