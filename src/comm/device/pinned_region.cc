#include "comm/device/pinned_region.h"

#include "tensor/pinned_memory.h"

namespace tessera::comm {
namespace {

class PinnedRegion final : public SharedRegion {
 public:
  PinnedRegion(std::shared_ptr<SharedRegion> region, c10::Device device)
      : region_(std::move(region)), pinned_(region_->data(), region_->size_bytes(), device) {}
  std::byte* data() const noexcept override { return region_->data(); }
  std::int64_t size_bytes() const noexcept override { return region_->size_bytes(); }

 private:
  std::shared_ptr<SharedRegion> region_;
  tensor::PinnedMemory pinned_;
};

}  // namespace

std::shared_ptr<SharedRegion> pinned(std::shared_ptr<SharedRegion> region, c10::Device device) {
  if (!region || device.is_cpu() || region->size_bytes() == 0) return region;
  return std::make_shared<PinnedRegion>(std::move(region), device);
}

}  // namespace tessera::comm
