#pragma once
#include <cstdint>

namespace tessera::fsdp {

/// The sum of x[i]^2 of float32 in double, in eight lanes: the same order of additions, and so the same bits, at every
/// level of instructions.
double sum_of_squares(const float* x, std::int64_t n);

}  // namespace tessera::fsdp
