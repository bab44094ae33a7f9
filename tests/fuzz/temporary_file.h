#pragma once
// The readers take paths; a fuzz target has bytes. One file in memory for each process.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera::fuzz {

/// The path of an anonymous file that now holds these bytes.
inline std::string as_file(const std::uint8_t* data, std::size_t size) {
  static const int descriptor = ::memfd_create("fuzz", 0);
  if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size)) return {};
  return "/proc/self/fd/" + std::to_string(descriptor);
}

}  // namespace tessera::fuzz
