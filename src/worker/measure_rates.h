#pragma once
// What a rank's cores do, for `tessera estimate --link`.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::worker {

/// Prints floating point operations a second of matrix products in --dtype, and bytes
/// that are read and written a second. About half a second; the threads are those of the environment.
int measure_rates(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::worker
