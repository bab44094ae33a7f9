#pragma once
// CRC-32 as zip files have it (ISO 3309), by ISA-L.
#include <cstddef>
#include <cstdint>

namespace tessera {

/// Of `bytes` bytes, behind data whose checksum is `before`.
std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t before = 0);

}  // namespace tessera
