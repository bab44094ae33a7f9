#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// x W^T + bias + scaling * dropout(x) A^T B^T as one autograd node. a: [rank, in], b: [out, rank]. The adapter
/// computes in its own dtype; the result has the base product's. Keeps x and the [tokens, rank] product for backward;
/// the mask is drawn again.
at::Tensor lora_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& a,
                       const at::Tensor& b, double scaling, double dropout);

}  // namespace tessera::nn
