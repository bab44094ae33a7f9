#include "tensor/device.h"

#include <utility>

namespace tessera::tensor {
namespace {

/// What a device's tensor was copied from; the tensor holds it.
class HostOriginal final : public c10::BackendMeta {
 public:
  HostOriginal(at::Tensor host, const at::Tensor& copy)
      : host_(std::move(host)), host_version_(host_._version()), version_(copy._version()) {}

  const at::Tensor& host() const { return host_; }
  bool is_of(const at::Tensor& copy) const {
    return host_._version() == host_version_ && copy._version() == version_ && copy.sizes() == host_.sizes();
  }

 private:
  at::Tensor host_;
  std::int64_t host_version_, version_;
};

bool keeps_original(const at::Tensor& t) {
  return t.is_cpu() && at::isIntegralType(t.scalar_type(), /*includeBool=*/true) && !t.is_inference();
}

}  // namespace

at::Tensor to_device(const at::Tensor& t, at::Device device) {
  if (!t.defined() || t.device() == device) return t;
  // A copy from pageable memory waits. What is pinned already, the caller may write over when this returns.
  const bool pins = t.is_cpu() && !t.requires_grad() && !t.is_pinned();
  const auto copy = pins ? t.contiguous().pin_memory().to(device, /*non_blocking=*/true) : t.to(device);
  if (keeps_original(t) && !copy.is_inference())
    copy.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<HostOriginal>(t, copy));
  return copy;
}

at::Tensor on_host(const at::Tensor& t) {
  if (!t.defined() || t.is_cpu()) return t;
  const auto* original = dynamic_cast<const HostOriginal*>(t.unsafeGetTensorImpl()->get_backend_meta());
  return original != nullptr && !t.is_inference() && original->is_of(t) ? original->host() : t.cpu();
}

}  // namespace tessera::tensor
