#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// Numbers between -range[t] and range[t] for row t of x [T, D], of its shape and dtype, drawn as dropout masks are
/// (tensor::PassScope). range: [T] float32.
at::Tensor uniform_noise(const at::Tensor& x, const at::Tensor& range);

}  // namespace tessera::nn
