#pragma once
// The functions of base/device_kernels.h as loops on the CPU: what a device of tests has, and what the kernels of a GPU
// are held against (tests/gpu/kernel_check.cu). Pointers are of the host, `stream` is ignored, work is done at return.
#include "base/device_kernels.h"

namespace tessera::test {

const DeviceKernels* host_kernels();

/// Of host_register(), not unregistered yet.
std::int64_t registered_regions();
bool is_registered(const void* address);
/// From now on host_register() refuses, as where locked memory is limited.
void refuse_to_register(bool refuse);

}  // namespace tessera::test
