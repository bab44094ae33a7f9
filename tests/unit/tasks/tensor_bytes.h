#pragma once
// Memory of tensors, counted one by one.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace tessera::tasks {

/// Bytes of the tensors that this thread allocates while it lives, as libtorch's profiler counts them.
class TensorBytes {
 public:
  TensorBytes() : count_(std::make_shared<Count>()), guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}
  std::int64_t now() const { return count_->now; }
  std::int64_t peak() const { return count_->peak; }
  void reset_peak() { count_->peak = count_->now; }

 private:
  struct Count : c10::MemoryReportingInfoBase {
    std::int64_t now = 0, peak = 0;
    void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
  };
  std::shared_ptr<Count> count_;
  c10::DebugInfoGuard guard_;
};

}  // namespace tessera::tasks
