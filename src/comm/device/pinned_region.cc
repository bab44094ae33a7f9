#include "comm/device/pinned_region.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <string>

#include "base/log.h"
#include "tensor/device_kernels.h"

namespace tessera::comm {
namespace {

class PinnedRegion final : public SharedRegion {
 public:
  PinnedRegion(std::shared_ptr<SharedRegion> region, const DeviceKernels& kernels, c10::Device device)
      : region_(std::move(region)), kernels_(kernels), device_(device) {
    const c10::OptionalDeviceGuard guard(device_);
    const int code = kernels_.host_register(region_->data(), region_->size_bytes());
    registered_ = code == 0;
    if (!registered_)
      log_warning("host memory is not pinned (" + std::string(kernels_.error_text(code)) + "), so copies to " +
                  device_.str() + " are slower; `ulimit -l` limits it");
  }
  ~PinnedRegion() override {
    if (!registered_) return;
    const c10::OptionalDeviceGuard guard(device_);
    static_cast<void>(kernels_.host_unregister(region_->data()));
  }
  std::byte* data() const noexcept override { return region_->data(); }
  std::int64_t size_bytes() const noexcept override { return region_->size_bytes(); }

 private:
  std::shared_ptr<SharedRegion> region_;
  const DeviceKernels& kernels_;
  c10::Device device_;
  bool registered_ = false;
};

}  // namespace

std::shared_ptr<SharedRegion> pinned(std::shared_ptr<SharedRegion> region, c10::Device device) {
  if (!region || device.is_cpu() || region->size_bytes() == 0) return region;
  const auto* kernels = tensor::device_kernels(at::empty({0}, at::TensorOptions().device(device)));
  if (kernels == nullptr) return region;
  return std::make_shared<PinnedRegion>(std::move(region), *kernels, device);
}

}  // namespace tessera::comm
