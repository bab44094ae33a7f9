#pragma once
#include "tessera/comm/communicator.h"

namespace tessera::train {

/// Matrix multiplication of this machine: multiply-adds x 2 per second of all ranks together, measured on 1024 x 1024
/// matrices while every rank does the same. Collective; a tenth of a second, and no longer than this rank's step took:
/// where that is less, on 256 x 256 matrices.
double measure_gemm_rate(comm::Communicator& group, at::ScalarType dtype, double step_seconds);

}  // namespace tessera::train
