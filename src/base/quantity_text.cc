#include "base/quantity_text.h"

#include <fmt/format.h>

#include <cmath>

namespace tessera {

std::string bytes_text(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} bytes", bytes);
  const char* unit = "";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB", "PiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = next;
  }
  const auto digits = fmt::format("{:.2f}", bytes);
  return fmt::format("{} {}", digits.ends_with('0') ? digits.substr(0, digits.size() - 1) : digits, unit);
}

std::string mib_text(double mib) {
  return bytes_text(mib * (1 << 20));
}

std::string duration_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", 1e6 * seconds);
  if (seconds < 1) return fmt::format("{:.3g} ms", 1e3 * seconds);
  if (seconds < 60) return fmt::format("{:.3g} s", seconds);
  const double whole = std::round(seconds), minutes = std::floor(whole / 60);
  return minutes < 60 ? fmt::format("{:.0f} min {:.0f} s", minutes, std::fmod(whole, 60))
                      : fmt::format("{:.0f} h {:.0f} min", std::floor(minutes / 60), std::fmod(minutes, 60));
}

}  // namespace tessera
