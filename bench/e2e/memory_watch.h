#pragma once
// What a rank holds, beside what it should hold.
#include <atomic>
#include <cstdint>
#include <thread>

#include "estimate/rank_memory.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::bench {

/// The highest proportional memory of this process while this lives, above that at its construction. Looks every five
/// milliseconds.
class MemoryWatch {
 public:
  MemoryWatch();
  ~MemoryWatch();
  std::int64_t base_bytes() const { return base_; }
  std::int64_t peak_bytes() const { return peak_ - base_; }

 private:
  std::int64_t base_;
  std::atomic<std::int64_t> peak_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

/// estimate::rank_bytes() for a model whose files are in fp32.
std::int64_t expected_bytes(const fsdp::FullyShardedDataParallel& model, const estimate::RankJob& job);

}  // namespace tessera::bench
