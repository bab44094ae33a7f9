#include "report/memory.h"

#include <fstream>
#include <string>

namespace tessera::report {
namespace {

std::int64_t kib_field(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) == 0) return std::stoll(line.substr(key.size())) * 1024;
  }
  return 0;
}

}  // namespace

ProcessMemory process_memory(const std::string& process) {
  const std::string folder = "/proc/" + process;
  return {.resident_bytes = kib_field(folder + "/status", "VmRSS:"),
          .peak_resident_bytes = kib_field(folder + "/status", "VmHWM:"),
          .proportional_bytes = kib_field(folder + "/smaps_rollup", "Pss:")};
}

}  // namespace tessera::report
