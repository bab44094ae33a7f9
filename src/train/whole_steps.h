#pragma once
// Numbers of steps as users give them.
#include <algorithm>
#include <cstdint>

namespace tessera::train {

/// More than fit are so many that no run takes them.
inline std::int64_t whole_steps(double steps) {
  constexpr double kMost = 0x1p62;
  return static_cast<std::int64_t>(std::min(steps, kMost));
}

}  // namespace tessera::train
