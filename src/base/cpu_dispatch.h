#pragma once
// Calls the version of a function that fits this process's CpuLevel, where Highway compiles a source once for each of
// them (hwy/foreach_target.h): plain, AVX2, AVX-512 on x86-64; elsewhere one for the compiler's baseline (NEON on
// aarch64: masks of SVE cannot be members). Include it before hwy/foreach_target.h, so that all sources have the same
// versions.
#if defined(__x86_64__)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#else
#define HWY_COMPILE_ONLY_STATIC
#endif
#include <hwy/targets.h>

#include <cstddef>
#include <cstdint>

#include "base/cpu_level.h"

#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0  // a single version
#define TESSERA_DISPATCH(function) HWY_STATIC_DISPATCH(function)
#else
#define TESSERA_DISPATCH(function) (*(HWY_DISPATCH_TABLE(function)[::tessera::dispatch_index()]))

namespace tessera {

/// The place of this process's level in the tables that HWY_EXPORT makes.
inline std::size_t dispatch_index() {
  static const std::size_t index = [] {
    const CpuLevel level = cpu_level();
    std::int64_t targets = 0;
    if (level >= CpuLevel::kAvx2) targets |= HWY_AVX2;
    if (level >= CpuLevel::kAvx512) targets |= HWY_AVX3;
    hwy::ChosenTarget chosen;
    chosen.Update(targets);
    return chosen.GetIndex();
  }();
  return index;
}

}  // namespace tessera
#endif
