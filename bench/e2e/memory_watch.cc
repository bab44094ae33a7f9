#include "e2e/memory_watch.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "report/memory.h"

namespace tessera::bench {
MemoryWatch::MemoryWatch(std::vector<std::string> processes)
    : processes_(std::move(processes)), base_(mean()), peak_(base_) {
  thread_ = std::thread([this] {
    while (!done_) {
      peak_ = std::max(peak_.load(), mean());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
}

MemoryWatch::~MemoryWatch() {
  done_ = true;
  thread_.join();
}

void MemoryWatch::leave_out_what_stays(const std::vector<std::string>& bytes) {
  std::int64_t sum = 0;
  for (const auto& text : bytes) sum += std::stoll(text);
  base_ = std::max(base_, mean() - sum / static_cast<std::int64_t>(bytes.size()));
}

std::int64_t MemoryWatch::mean() const {
  // A page that moves from one rank's account to all ranks' between two looks would count twice: the smaller of two.
  std::vector<std::int64_t> least(processes_.size(), std::numeric_limits<std::int64_t>::max());
  for (int look = 0; look < 2; ++look) {
    for (std::size_t i = 0; i < processes_.size(); ++i)
      least[i] = std::min(least[i], report::process_memory(processes_[i]).proportional_bytes);
  }
  return std::accumulate(least.begin(), least.end(), std::int64_t{0}) / static_cast<std::int64_t>(least.size());
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
