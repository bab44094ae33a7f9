#pragma once
// What is compared of a prepared row between ranks.
#include <cstdint>

namespace tessera::data {

struct RowMark {
  std::int64_t tokens = 0;
  std::uint32_t checksum = 0;  // CRC-32C of all that is learnt from the row: tokens, labels, where documents end
};

}  // namespace tessera::data
