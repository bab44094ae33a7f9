#pragma once
#include <c10/core/Device.h>

#include <cstdint>

#include "base/device_kernels.h"

namespace tessera::tensor {

/// While it lives, pages of the host's memory stay where they are, so that the device's copy engines reach them
/// (cudaHostRegister) and copies need not wait. Where that is refused, as by a limit on locked memory, copies are
/// slower, and the log says so; a device without kernels pins nothing.
class PinnedMemory {
 public:
  PinnedMemory(void* memory, std::int64_t bytes, c10::Device device);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  bool pinned() const { return kernels_ != nullptr; }

 private:
  void* memory_;
  c10::Device device_;
  const DeviceKernels* kernels_;  // null: it is not pinned
};

}  // namespace tessera::tensor
