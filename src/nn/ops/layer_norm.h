#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// weight * (x - mean) / sqrt(var + eps) + bias over the last dimension, statistics in float32, result of x's dtype.
/// weight, bias: [dim] of any floating dtype, or undefined. Backward is one pass that makes all three gradients.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

}  // namespace tessera::nn
