#include "report/memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>

namespace tessera::report {
namespace {

/// The sizes of a file of lines "Key:  123 kB", in bytes.
std::map<std::string, std::int64_t> kib_fields(const std::string& file) {
  std::map<std::string, std::int64_t> out;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon != std::string::npos && line.ends_with(" kB"))
      out[line.substr(0, colon)] = std::atoll(line.c_str() + colon + 1) * 1024;
  }
  return out;
}

/// Of the control group that a container is; nothing: no limit.
std::optional<std::int64_t> group_limit() {
  for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::int64_t limit = 0;
    if (std::ifstream(file) >> limit && limit > 0) return limit;
  }
  return std::nullopt;
}

}  // namespace

std::int64_t available_memory_bytes() {
  const std::int64_t free = kib_fields("/proc/meminfo")["MemAvailable"];
  return std::min(free, group_limit().value_or(free));
}

ProcessMemory process_memory(const std::string& process) {
  const std::string folder = "/proc/" + process;
  auto status = kib_fields(folder + "/status"), shares = kib_fields(folder + "/smaps_rollup");
  return {.resident_bytes = status["VmRSS"],
          .peak_resident_bytes = status["VmHWM"],
          .proportional_bytes = shares["Pss"],
          .anonymous_bytes = shares["Pss_Anon"],
          .file_bytes = shares["Pss_File"],
          .shared_bytes = shares["Pss_Shmem"]};
}

}  // namespace tessera::report
