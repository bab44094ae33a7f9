#pragma once
// Numbers as people read them.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace tessera::report {

/// "2.5 s", "4 min 10 s", "3 h 5 min".
inline std::string duration_text(double seconds) {
  if (seconds < 60) return fmt::format("{:.3g} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  return whole < 3600 ? fmt::format("{} min {} s", whole / 60, whole % 60)
                      : fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

/// "412 MiB", "1.37 GiB".
inline std::string mib_text(double mib) {
  return mib < 1024 ? fmt::format("{:.0f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024);
}

}  // namespace tessera::report
