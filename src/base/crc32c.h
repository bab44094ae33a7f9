#pragma once
// CRC-32C (Castagnoli; iSCSI, RFC 3720 B.4): what checkpoints are checked by. By ISA-L, which takes what the processor
// has for it.
#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera {

/// Of `bytes` bytes, behind data whose checksum is `before`.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0);

/// Of A followed by B, of the checksums of both and B's length: parts may be written in any order.
std::uint32_t crc32c_combine(std::uint32_t a, std::uint32_t b, std::uint64_t bytes_of_b);

/// Of a whole file, read in pieces; its size goes to *bytes unless null. DataError names the file.
std::uint32_t crc32c_of_file(const std::string& path, std::int64_t* bytes = nullptr);

/// "e3069283": eight lower-case hexadecimal digits.
std::string crc32c_text(std::uint32_t crc);

}  // namespace tessera
