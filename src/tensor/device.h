#pragma once
// Helper tensors on the right side when a model is not on the CPU. On the CPU, and for undefined tensors, all functions
// return what they are given.
#include <ATen/core/Tensor.h>

namespace tessera::tensor {

/// t on the device. The host does not wait for the copy. Integers keep what they were copied from, for on_host().
at::Tensor to_device(const at::Tensor& t, at::Device device);

/// t where the CPU can read it: what to_device() copied it from, unless one of the two has changed since. Else a copy,
/// for which the host waits.
at::Tensor on_host(const at::Tensor& t);

/// t on the device of `other`.
inline at::Tensor beside(const at::Tensor& t, const at::Tensor& other) {
  return other.is_cpu() ? on_host(t) : to_device(t, other.device());
}

}  // namespace tessera::tensor
