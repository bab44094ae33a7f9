#include "base/cpu_features.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>

namespace tessera {

std::vector<std::string> native_bfloat16() {
  constexpr std::array<std::string_view, 3> kWanted{"avx512_bf16", "amx_bf16", "bf16"};
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::vector<std::string> found;
    std::istringstream words(line.substr(std::min(line.find(':'), line.size() - 1) + 1));
    for (std::string word; words >> word;) {
      if (std::find(kWanted.begin(), kWanted.end(), word) != kWanted.end()) found.push_back(word);
    }
    return found;  // of the first processor: Linux lists what all of a kind have
  }
  return {};
}

}  // namespace tessera
