#pragma once
// Memory that takes turns: where in a ring each of several buffers lies when they are used in a fixed order. Pure
// arithmetic.
#include <cstdint>
#include <vector>

namespace tessera::fsdp {

struct RingSlot {
  std::int64_t offset = 0;  // bytes from the ring's begin
  int previous_user = -1;   // index of the last buffer before this one that overlaps it; -1: none
};

/// `bytes`: of the buffers, in order of use; none is larger than the ring.
std::vector<RingSlot> place_in_ring(const std::vector<std::int64_t>& bytes, std::int64_t ring_bytes);

}  // namespace tessera::fsdp
