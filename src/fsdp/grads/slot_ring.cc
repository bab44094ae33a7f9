#include "fsdp/grads/slot_ring.h"

#include "tessera/base/error.h"

namespace tessera::fsdp {

std::vector<RingSlot> place_in_ring(const std::vector<std::int64_t>& bytes, std::int64_t ring_bytes) {
  std::vector<RingSlot> slots(bytes.size());
  std::int64_t cursor = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    TESSERA_CHECK(bytes[i] <= ring_bytes, "a buffer is larger than the ring");
    if (cursor + bytes[i] > ring_bytes) cursor = 0;
    auto& slot = slots[i];
    slot.offset = cursor;
    cursor += bytes[i];
    for (std::size_t j = 0; j < i; ++j)
      if (slots[j].offset < cursor && slot.offset < slots[j].offset + bytes[j])
        slot.previous_user = static_cast<int>(j);
  }
  return slots;
}

}  // namespace tessera::fsdp
