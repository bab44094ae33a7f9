#include "tensor/pinned_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <string>

#include "base/log.h"
#include "tensor/device_kernels.h"

namespace tessera::tensor {

PinnedMemory::PinnedMemory(void* memory, std::int64_t bytes, c10::Device device)
    : memory_(memory), device_(device), kernels_(device_kernels(at::empty({0}, at::TensorOptions().device(device)))) {
  if (kernels_ == nullptr) return;
  const c10::OptionalDeviceGuard guard(device_);
  const int code = kernels_->host_register(memory_, bytes);
  if (code == 0) return;
  log_warning("host memory is not pinned (" + std::string(kernels_->error_text(code)) + "), so copies to " +
              device_.str() + " are slower; `ulimit -l` limits it");
  kernels_ = nullptr;
}

PinnedMemory::~PinnedMemory() {
  if (kernels_ == nullptr) return;
  const c10::OptionalDeviceGuard guard(device_);
  static_cast<void>(kernels_->host_unregister(memory_));
}

}  // namespace tessera::tensor
