#pragma once
// Values of a device that the host reads later.
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace tessera::tensor {

/// A copy on the host, queued behind what the device was told so far. The host waits when it reads it, and not at all
/// where it has waited for later work of the device meanwhile.
class HostCopy {
 public:
  explicit HostCopy(const at::Tensor& t);
  const at::Tensor& read() const;

 private:
  at::Tensor copy_;
  std::optional<c10::Event> done_;  // unset: t was on the host
};

}  // namespace tessera::tensor
