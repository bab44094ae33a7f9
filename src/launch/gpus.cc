#include "launch/gpus.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

namespace tessera::launch {
namespace {

/// Nothing unless all of it is a number.
std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// "0-3,8": empty where it is something else.
std::vector<int> cpus_in(const std::string& list) {
  std::vector<int> cpus;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto dash = part.find('-');
    const auto first = number(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : number(part.substr(dash + 1));
    if (!first || !last || *last - *first > (1 << 16)) return {};
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

bool has_gpu() {
  struct stat info{};
  return ::stat("/dev/nvidiactl", &info) == 0 || ::stat("/dev/dxg", &info) == 0;
}

std::vector<std::vector<int>> cpus_beside_gpus(int ranks, const std::optional<std::string>& visible,
                                               const std::string& root) {
  std::vector<std::string> addresses;
  std::error_code none;
  for (std::filesystem::directory_iterator gpu(root + "/proc/driver/nvidia/gpus", none), end; !none && gpu != end;
       gpu.increment(none))
    addresses.push_back(gpu->path().filename().string());
  std::sort(addresses.begin(), addresses.end());
  std::vector<std::string> chosen;
  if (!visible) {
    chosen = addresses;
  } else {
    std::istringstream parts(*visible);
    for (std::string part; std::getline(parts, part, ',');) {
      const auto index = number(part);
      if (!index || static_cast<std::size_t>(*index) >= addresses.size()) return {};
      chosen.push_back(addresses[static_cast<std::size_t>(*index)]);
    }
  }
  if (chosen.size() < static_cast<std::size_t>(ranks)) return {};
  std::vector<std::vector<int>> beside;
  for (int r = 0; r < ranks; ++r) {
    std::string list;
    std::getline(std::ifstream(root + "/sys/bus/pci/devices/" + chosen[static_cast<std::size_t>(r)] + "/local_cpulist"),
                 list);
    beside.push_back(cpus_in(list));
    if (beside.back().empty()) return {};
  }
  return beside;
}

}  // namespace tessera::launch
