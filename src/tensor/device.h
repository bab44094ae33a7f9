#pragma once
// Helper tensors on the right side when a model is not on the CPU. On the CPU both functions return what they are
// given.
#include <ATen/core/Tensor.h>

namespace tessera::tensor {

/// t where the CPU can read it.
inline at::Tensor on_host(const at::Tensor& t) {
  return t.is_cpu() ? t : t.cpu();
}

/// t on the device of `other`.
inline at::Tensor beside(const at::Tensor& t, const at::Tensor& other) {
  return t.device() == other.device() ? t : t.to(other.device());
}

}  // namespace tessera::tensor
