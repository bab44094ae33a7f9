#pragma once
// Matrix products without autograd, through the fastest library that libtorch carries for this processor: MKL runs
// float32 at half speed on processors that are not Intel's, oneDNN does not.
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// a [M, K] times b [K, N], or both with a leading batch size; same dtype; views that are transposed are read in place.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b);
/// out = alpha * a b, out += alpha * a b. out: contiguous, of the same dtype.
void gemm_to(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha = 1.0);
void gemm_add(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha = 1.0);

/// x W^T + bias with autograd; x: [..., in], weight: [out, in], bias: [out] or undefined. Keeps x for backward only
/// where the weight trains.
at::Tensor affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace tessera::nn
