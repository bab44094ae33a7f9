#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// (w + offset) * x / sqrt(mean(x^2) + eps) over the last dimension, statistics in float32, one pass each way. Result:
/// weight's dtype when that is 16 bits wide, else the common type of x and weight (transformers' T5LayerNorm).
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset = 0.0);

}  // namespace tessera::nn
