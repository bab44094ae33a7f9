#pragma once
#include "tessera/comm/communicator.h"

namespace tessera::train {

/// Matrix multiplication of this machine: multiply-adds x 2 per second of all ranks together, measured on 1024 x 1024
/// matrices while every rank does the same. Collective; about a tenth of a second.
double measure_gemm_rate(comm::Communicator& group, at::ScalarType dtype);

}  // namespace tessera::train
