#pragma once
#include <string>

#include "estimate/estimate.h"

namespace tessera::cli {

/// Starts so many ranks as a launch does, bound to their cores, each of which measures (worker/measure_rates.h); the
/// slowest's rates. Error where one fails.
estimate::RankRates measured_rates(int ranks, const std::string& mixed_precision);

}  // namespace tessera::cli
