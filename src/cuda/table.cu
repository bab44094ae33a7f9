#include "cuda/elements.cuh"
#include "cuda/kernels.h"

namespace {

const char* error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const tessera::DeviceKernels* tessera_device_kernels() {
  using namespace tessera;
  static constexpr DeviceKernels kTable = {kDeviceKernelsVersion, error_text,          cuda::rotary,   cuda::gate,
                                           cuda::dropout,         cuda::cross_entropy, cuda::four_bit, cuda::adam,
                                           cuda::squares};
  return &kTable;
}
