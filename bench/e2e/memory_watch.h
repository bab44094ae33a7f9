#pragma once
// What a rank holds, beside what it should hold.
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "estimate/rank_memory.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::bench {

/// The highest proportional memory of these processes together while this lives, divided by their number, above their
/// base: that at its construction. Together, because a page that all will use counts in full for the one that comes to
/// it first. Looks every five milliseconds.
class MemoryWatch {
 public:
  /// processes: their ids.
  explicit MemoryWatch(std::vector<std::string> processes);
  ~MemoryWatch();
  /// Once the model is gone: what the processes still hold beyond these bytes of each is the program's and its
  /// libraries' own (oneDNN keeps half a megabyte for every kind of product), and so part of the base.
  void leave_out_what_stays(const std::vector<std::string>& bytes);
  std::int64_t base_bytes() const { return base_; }
  std::int64_t peak_bytes() const { return peak_ - base_; }

 private:
  std::int64_t mean() const;
  std::vector<std::string> processes_;
  std::int64_t base_;
  std::atomic<std::int64_t> peak_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

/// estimate::rank_bytes() for a model whose files are in fp32.
std::int64_t expected_bytes(const fsdp::FullyShardedDataParallel& model, const estimate::RankJob& job);

}  // namespace tessera::bench
