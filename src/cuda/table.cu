#include "cuda/elements.cuh"
#include "cuda/kernels.h"

namespace {

const char* error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

__global__ void nothing() {}

/// Asks for a kernel of this library: a device for which there is no machine code says so.
int capability(std::int32_t* value) {
  int device = 0, major = 0, minor = 0;
  cudaFuncAttributes attributes;
  cudaError_t code = cudaGetDevice(&device);
  if (code == cudaSuccess) code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (code == cudaSuccess) code = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (code == cudaSuccess) code = cudaFuncGetAttributes(&attributes, nothing);
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  *value = 10 * major + minor;
  return static_cast<int>(code);
}

int host_register(void* memory, std::int64_t bytes) {
  const auto code = cudaHostRegister(memory, static_cast<std::size_t>(bytes), cudaHostRegisterPortable);
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return static_cast<int>(code);
}

int host_unregister(void* memory) {
  const auto code = cudaHostUnregister(memory);
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return static_cast<int>(code);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const tessera::DeviceKernels* tessera_device_kernels() {
  using namespace tessera;
  static constexpr DeviceKernels kTable = {kDeviceKernelsVersion, error_text,     capability, host_register,
                                           host_unregister,       cuda::rotary,   cuda::gate, cuda::dropout,
                                           cuda::cross_entropy,   cuda::four_bit, cuda::adam, cuda::block_adam,
                                           cuda::squares,         cuda::rank_sum};
  return &kTable;
}
