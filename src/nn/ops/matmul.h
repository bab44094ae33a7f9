#pragma once
// Matrix products with autograd, for code that is written with libtorch's operators: at::matmul() and at::linear(), but
// where libtorch is slow on a CPU (16 bits that the processor has no instructions for, some of float32) by products of
// our own (gemm.h).
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// a b, of factors with 2 dimensions or with a batch's before them.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b);
/// x weight^T + bias; bias may be undefined. x: [.., K], weight: [N, K].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace tessera::nn
