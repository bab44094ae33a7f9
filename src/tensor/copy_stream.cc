#include "tensor/copy_stream.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::tensor {
namespace {

c10::Stream new_stream(at::Device device) {
  const c10::OptionalDeviceGuard guard(device);
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

c10::Stream computing_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

CopyStream::CopyStream(at::Device device) : stream_(new_stream(device)) {}

void CopyStream::wait_for_computation() {
  c10::Event computed(device().type());
  computed.record(computing_stream(device()));
  computed.block(stream_);
}

void CopyStream::copy(const at::Tensor& to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  const c10::StreamGuard on_stream(stream_);
  to.copy_(from, /*non_blocking=*/(to.is_cpu() ? to : from).is_pinned());
}

c10::Event CopyStream::mark() const {
  c10::Event done(device().type());
  done.record(stream_);
  return done;
}

void CopyStream::block_computation(const c10::Event& mark) const {
  mark.block(computing_stream(device()));
}

}  // namespace tessera::tensor
