#include "tensor/host_copy.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::tensor {

HostCopy::HostCopy(const at::Tensor& t) : copy_(t.detach().to(at::kCPU, /*non_blocking=*/true)) {
  if (t.is_cpu()) return;
  done_.emplace(t.device().type());
  done_->record(c10::impl::VirtualGuardImpl(t.device().type()).getStream(t.device()));
}

const at::Tensor& HostCopy::read() const {
  if (done_) done_->synchronize();
  return copy_;
}

}  // namespace tessera::tensor
