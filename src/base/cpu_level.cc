#include "base/cpu_level.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/env.h"
#include "tessera/base/error.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tessera {
namespace {

constexpr std::array<std::string_view, 5> kNames{"plain", "avx2", "avx512", "avx512_bf16", "amx"};

bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
/// Tiles are state that Linux saves only for processes that asked for it; a sandbox may refuse.
bool may_use_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  const auto units = native_bfloat16();
  return std::find(units.begin(), units.end(), "amx_bf16") != units.end() &&
         ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

std::string names_up_to(CpuLevel highest) {
  std::string out;
  for (std::size_t i = 0; i <= static_cast<std::size_t>(highest); ++i)
    out += (i == 0 ? "" : ", ") + std::string(kNames[i]);
  return out;
}

}  // namespace

std::string_view name(CpuLevel level) {
  return kNames[static_cast<std::size_t>(level)];
}

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

CpuLevel native_cpu_level() {
#if defined(__x86_64__)
  static const CpuLevel level = [] {
    if (!has_avx2()) return CpuLevel::kPlain;
    if (!has_avx512()) return CpuLevel::kAvx2;
    if (!__builtin_cpu_supports("avx512bf16")) return CpuLevel::kAvx512;
    return may_use_amx() ? CpuLevel::kAmx : CpuLevel::kAvx512Bf16;
  }();
  return level;
#else
  return CpuLevel::kPlain;
#endif
}

CpuLevel choose_cpu_level(const std::optional<std::string>& wanted, CpuLevel native, bool is_intel) {
  if (!wanted) return is_intel && native == CpuLevel::kAvx512Bf16 ? CpuLevel::kAvx512 : native;
  const auto* const found = std::find(kNames.begin(), kNames.end(), *wanted);
  if (found == kNames.end() || found - kNames.begin() > static_cast<std::ptrdiff_t>(native))
    throw ConfigError("TESSERA_CPU_LEVEL: expected a level that this processor has (" + names_up_to(native) +
                          "), found '" + *wanted + "'; unset it to use the highest",
                      "TESSERA_CPU_LEVEL");
  return static_cast<CpuLevel>(found - kNames.begin());
}

CpuLevel cpu_level() {
  static const CpuLevel level = choose_cpu_level(environment("TESSERA_CPU_LEVEL"), native_cpu_level(), is_intel());
  return level;
}

bool multiplies_bfloat16() {
#if defined(__x86_64__)
  return cpu_level() >= CpuLevel::kAvx512Bf16;
#else
  static const bool has_units = !native_bfloat16().empty();
  return has_units;
#endif
}

void make_products_reproducible() {
  if (is_intel()) ::setenv("MKL_CBWR", "AUTO,STRICT", /*overwrite=*/0);
}

bool multiplies_float32() {
#if defined(__x86_64__)
  return cpu_level() != CpuLevel::kAvx2 || is_intel();
#else
  return true;
#endif
}

}  // namespace tessera
