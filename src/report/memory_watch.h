#pragma once
// The most memory that this process held in a run, and in which part of it.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "report/memory.h"

namespace tessera::report {

/// Says what the files in memory are of this rank, and is told their mean over the ranks of the host, which map the
/// same ones: a rank that is ahead in its first forward has pages alone that it will share.
using MeanOfFiles = std::function<std::int64_t(std::int64_t file_bytes)>;

/// Looks at /proc from a thread of its own, a tenth of a second apart, and no oftener than one part in fifty of the
/// time (a look at a large process takes milliseconds).
class MemoryWatch {
 public:
  /// limit_bytes: of proportional memory; 0: none. Files count with no more than their mean, where that is told.
  explicit MemoryWatch(std::int64_t limit_bytes, MeanOfFiles mean_of_files = {});
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  /// What the process does from now on, "evaluation"; text that stays.
  void enter(const char* phase) { phase_ = phase; }
  bool over() const { return over_; }
  struct Peak {
    ProcessMemory memory;
    std::string phase;
  };
  /// Of the looks so far and one more.
  Peak peak();

 private:
  void look();

  const std::int64_t limit_bytes_;
  const MeanOfFiles mean_of_files_;
  std::atomic<const char*> phase_{"the start"};
  std::atomic<bool> over_{false};
  std::mutex mutex_;  // of what follows
  std::condition_variable stopped_;
  bool stops_ = false;
  Peak peak_;
  std::thread thread_;
};

}  // namespace tessera::report
