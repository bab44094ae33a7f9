#pragma once
// What /proc says of a process. Bytes; 0 where the kernel does not tell.
#include <cstdint>
#include <string>

namespace tessera::report {

struct ProcessMemory {
  std::int64_t resident_bytes = 0;       // VmRSS
  std::int64_t peak_resident_bytes = 0;  // VmHWM
  std::int64_t proportional_bytes = 0;   // Pss: shared pages count 1/n
  // Its parts: memory of its own, files (weights that are mapped, libraries), memory that ranks share.
  std::int64_t anonymous_bytes = 0, file_bytes = 0, shared_bytes = 0;
};

/// process: its id; by default this one. Reading Pss walks the page tables (milliseconds for a large process): not for
/// every step.
ProcessMemory process_memory(const std::string& process = "self");

/// What this machine, or this container, has left for programs that start now.
std::int64_t available_memory_bytes();

}  // namespace tessera::report
