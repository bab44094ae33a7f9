#pragma once
#include <unistd.h>

#include <cstdint>

namespace tessera {

/// Of the system's memory: 4096 on x86-64, up to 65536 on Arm.
inline std::uintptr_t page_bytes() {
  static const auto bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace tessera
