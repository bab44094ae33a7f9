#pragma once
#include <cmath>

namespace tessera {

/// To so many places behind the point.
inline double rounded(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::round(value * scale) / scale;
}

}  // namespace tessera
