#include "report/memory_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/quiet_thread.h"

namespace tessera::report {

MemoryWatch::MemoryWatch(std::int64_t limit_bytes, MeanOfFiles mean_of_files)
    : limit_bytes_(limit_bytes), mean_of_files_(std::move(mean_of_files)) {
  thread_ = start_quiet_thread("tessera-memory", [this] {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kPause{100};
    constexpr int kRest = 50;
    std::unique_lock lock(mutex_);
    Clock::duration cost{};
    while (!stopped_.wait_for(lock, std::max<Clock::duration>(kPause, kRest * cost), [this] { return stops_; })) {
      lock.unlock();
      const auto start = Clock::now();
      look();
      cost = Clock::now() - start;
      lock.lock();
    }
  });
}

MemoryWatch::~MemoryWatch() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void MemoryWatch::look() {
  const char* phase = phase_;
  auto now = process_memory();
  if (mean_of_files_) {
    const auto files = std::min(now.file_bytes, mean_of_files_(now.file_bytes));
    now.proportional_bytes -= now.file_bytes - files;
    now.file_bytes = files;
  }
  if (limit_bytes_ > 0 && now.proportional_bytes > limit_bytes_) over_ = true;
  const std::lock_guard lock(mutex_);
  if (now.proportional_bytes > peak_.memory.proportional_bytes) peak_ = {now, phase};
}

MemoryWatch::Peak MemoryWatch::peak() {
  look();
  const std::lock_guard lock(mutex_);
  return peak_;
}

}  // namespace tessera::report
