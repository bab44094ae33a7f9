#pragma once
#include <cstdint>

namespace tessera {

/// Gives the calling thread time slices of 0.1 ms: the kernel then lets it run as soon as something arrives for it,
/// although a thread that computes has the processor, and not after that one's slice. From Linux 6.12 on; before, or
/// where a sandbox forbids it, nothing changes.
void take_short_slices();

/// The calling thread's slice in nanoseconds; 0 where the kernel does not say.
std::uint64_t slice_of_this_thread();

}  // namespace tessera
