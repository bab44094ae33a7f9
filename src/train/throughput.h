#pragma once
#include "tessera/comm/communicator.h"

namespace tessera::train {

/// Matrix multiplication of this machine: multiply-adds x 2 per second of all ranks together, measured on 1024 x 1024
/// matrices while every rank does the same, on 256 x 256 where this rank's step took less than a tenth of a second.
/// Collective; takes a tenth of a step, at most a tenth of a second, at least two products.
double measure_gemm_rate(comm::Communicator& group, at::ScalarType dtype, double step_seconds);

}  // namespace tessera::train
