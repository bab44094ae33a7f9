#pragma once
#include <ATen/core/Tensor.h>

#include "base/layer_kinds.h"

namespace tessera::nn {

at::Tensor activate(const at::Tensor& x, Activation activation);

/// activate(gate) * up, for [T, I] tensors whose rows may lie apart. SiLU and tanh-GELU are one pass each way, and keep
/// only gate and up for backward.
at::Tensor gated(const at::Tensor& gate, const at::Tensor& up, Activation activation);

}  // namespace tessera::nn
