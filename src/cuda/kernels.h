#pragma once
// The launchers that table.cu puts together, a file each.
#include "base/device_kernels.h"

namespace tessera::cuda {

int rotary(void* stream, const DeviceRotary* args);
int gate(void* stream, const DeviceGate* args);
int dropout(void* stream, const DeviceDropout* args);
int cross_entropy(void* stream, const DeviceCrossEntropy* args);
int four_bit(void* stream, const DeviceFourBit* args);
int adam(void* stream, const DeviceAdam* args);
int block_adam(void* stream, const DeviceBlockAdam* args);
int squares(void* stream, const DeviceSquares* args);
int rank_sum(void* stream, const DeviceRankSum* args);

}  // namespace tessera::cuda
