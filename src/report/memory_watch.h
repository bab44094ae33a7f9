#pragma once
// The most memory that this process held in a run, and in which part of it.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "report/memory.h"

namespace tessera::report {

/// Looks at /proc from a thread of its own, a tenth of a second apart, and no oftener than one part in fifty of the
/// time (a look at a large process takes milliseconds).
class MemoryWatch {
 public:
  /// limit_bytes: of proportional memory; 0: none.
  explicit MemoryWatch(std::int64_t limit_bytes);
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
  std::atomic<const char*> phase_{"the start"};
  std::atomic<bool> over_{false};
  std::mutex mutex_;  // of what follows
  std::condition_variable stopped_;
  bool stops_ = false;
  Peak peak_;
  std::thread thread_;
};

}  // namespace tessera::report
