#include "e2e/memory_watch.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>
#include <vector>

#include "report/memory.h"

namespace tessera::bench {
namespace {

std::int64_t mean(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0}) / static_cast<std::int64_t>(values.size());
}

}  // namespace

MemoryWatch::MemoryWatch(std::vector<std::string> processes)
    : processes_(std::move(processes)), base_(look()), peak_(base_) {
  thread_ = std::thread([this] {
    while (!done_) {
      const auto now = look();
      for (std::size_t i = 0; i < now.size(); ++i) peak_[i] = std::max(peak_[i], now[i]);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

MemoryWatch::~MemoryWatch() {
  stop();
}

void MemoryWatch::stop() {
  done_ = true;
  if (thread_.joinable()) thread_.join();
}

void MemoryWatch::leave_out_what_stays(const std::vector<std::string>& bytes) {
  const auto now = look();
  for (std::size_t i = 0; i < now.size(); ++i)
    base_[i] = std::max<std::int64_t>(base_[i], now[i] - std::stoll(bytes[i]));
}

std::int64_t MemoryWatch::base_bytes() const {
  return mean(base_);
}

std::int64_t MemoryWatch::peak_bytes() const {
  return mean(peak_) - mean(base_);
}

std::vector<std::int64_t> MemoryWatch::look() const {
  std::vector<std::int64_t> bytes;
  for (const auto& process : processes_) bytes.push_back(report::process_memory(process).proportional_bytes);
  return bytes;
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
