#include "base/crc32.h"

#include <isa-l/crc.h>

namespace tessera {

std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t before) {
  return ::crc32_gzip_refl(before, static_cast<const unsigned char*>(data), bytes);
}

}  // namespace tessera
