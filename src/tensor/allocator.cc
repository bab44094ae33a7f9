#include "tessera/tensor/allocator.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "tensor/block_map.h"

namespace tessera::tensor {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kSmallest = 16 << 10;
constexpr std::int64_t kHugePage = 2 << 20;
constexpr std::int64_t kRange = std::int64_t{1} << 40;  // addresses, not memory

thread_local bool from_far_end = false;

/// Lies in the 64 bytes before a block.
struct BlockHeader {
  std::int64_t size;  // with the header
};

class StepAllocator final : public c10::Allocator {
 public:
  /// Null where the range cannot be had.
  static StepAllocator* make() {
    void* range =
        ::mmap(nullptr, kRange + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(range);
    auto* base = reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
    ::madvise(base, kRange, MADV_HUGEPAGE);
    ::madvise(base, kRange, MADV_DONTFORK);
    return new StepAllocator(base);
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    const auto wanted = static_cast<std::int64_t>(bytes);
    if (wanted < kSmallest) return elsewhere(bytes);
    const std::int64_t size = size_of_block(wanted);
    const std::lock_guard lock(mutex_);
    const std::int64_t offset = from_far_end ? blocks_.take_high(size) : blocks_.take(size);
    if (offset < 0) return elsewhere(bytes);
    stats_.used_bytes += size;
    if (stats_.used_bytes > stats_.peak_used_bytes) stats_.peak_used_bytes = stats_.used_bytes;
    stats_.touched_bytes = blocks_.end();
    auto* header = reinterpret_cast<BlockHeader*>(base_ + offset);
    header->size = size;
    void* data = base_ + offset + kAlignment;
    return {data, data, &StepAllocator::free, at::Device(at::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &StepAllocator::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool has_free(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    return bytes < kSmallest || blocks_.has_free(size_of_block(bytes));
  }
  AllocatorStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak_used_bytes = stats_.used_bytes;
  }

  static StepAllocator* installed;  // lives as long as the process: tensors may outlive anything else

 private:
  explicit StepAllocator(std::byte* base) : base_(base), fallback_(c10::GetDefaultCPUAllocator()) {}

  static std::int64_t size_of_block(std::int64_t bytes) {
    return (bytes + 2 * kAlignment - 1) / kAlignment * kAlignment;
  }

  c10::DataPtr elsewhere(std::size_t bytes) const {
    void* data = fallback_->raw_allocate(bytes);
    return {data, data, &StepAllocator::free, at::Device(at::kCPU)};
  }

  static void free(void* data) {
    auto& a = *installed;
    if (data < a.base_ || data >= a.base_ + kRange) return a.fallback_->raw_deallocate(data);
    auto* block = static_cast<std::byte*>(data) - kAlignment;
    const std::int64_t size = reinterpret_cast<BlockHeader*>(block)->size;
    const std::lock_guard lock(a.mutex_);
    a.stats_.used_bytes -= size;
    a.blocks_.give_back(block - a.base_, size);
  }

  std::byte* base_;
  c10::Allocator* fallback_;
  std::mutex mutex_;
  BlockMap blocks_{kRange};
  AllocatorStats stats_;
};

StepAllocator* StepAllocator::installed = nullptr;

}  // namespace

bool use_step_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    StepAllocator::installed = StepAllocator::make();
    if (StepAllocator::installed) c10::SetCPUAllocator(StepAllocator::installed, 1);
  });
  return StepAllocator::installed != nullptr;
}

FarEndScope::FarEndScope() : before_(std::exchange(from_far_end, true)) {}
FarEndScope::~FarEndScope() {
  from_far_end = before_;
}

bool has_free_block(std::int64_t bytes) {
  return StepAllocator::installed && StepAllocator::installed->has_free(bytes);
}

AllocatorStats allocator_stats() {
  return StepAllocator::installed ? StepAllocator::installed->stats() : AllocatorStats{};
}

void reset_peak_used() {
  if (StepAllocator::installed) StepAllocator::installed->reset_peak();
}

}  // namespace tessera::tensor
