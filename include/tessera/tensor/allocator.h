#pragma once
// Memory of CPU tensors that stays mapped between steps. malloc gives large blocks back to the system, which maps and
// zeroes them again for the next operator; here they come from one address range on huge pages and are used again.
#include <cstdint>

namespace tessera::tensor {

/// From now on all CPU tensors of the process are allocated here (blocks below 16 KiB stay with malloc). Programs call
/// it once, before their first tensor; later calls do nothing. False where the system grants no address range: libtorch
/// keeps its own allocator.
bool use_step_allocator();

/// While one exists, what this thread allocates is taken from the far end of the free memory: for what is going to
/// outlive the operators around it (a gradient that waits for the optimizer), which between their blocks would split
/// the memory up that they free.
class FarEndScope {
 public:
  FarEndScope();
  ~FarEndScope();
  FarEndScope(const FarEndScope&) = delete;
  FarEndScope& operator=(const FarEndScope&) = delete;

 private:
  bool before_;
};

/// Whether a tensor of so many bytes would lie in memory that is mapped and free: it takes no more from the system.
bool has_free_block(std::int64_t bytes);

/// Bytes of the blocks from 16 KiB on. All zero without use_step_allocator().
struct AllocatorStats {
  std::int64_t used_bytes = 0, peak_used_bytes = 0;
  std::int64_t touched_bytes = 0;  // of the range that ever held a block: what stays resident
};
AllocatorStats allocator_stats();
/// peak_used_bytes counts from now on.
void reset_peak_used();

}  // namespace tessera::tensor
