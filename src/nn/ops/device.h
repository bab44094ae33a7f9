#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// Whether this room's kernels can work on t. Public functions of the room ask it once, of their first tensor; where it
/// is false they call the composite (nn/composite/composite.h). Which version of a kernel runs is chosen by
/// base/cpu_level.h.
inline bool has_kernels(const at::Tensor& t) {
  return t.is_cpu();
}

}  // namespace tessera::nn
