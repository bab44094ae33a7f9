#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/nn/adapter.h"
#include "tessera/nn/weight.h"

namespace tessera::nn {

/// x W^T + bias + scaling * dropout(x) A^T B^T as one autograd node. The adapter computes in its own dtype; the result
/// has the base product's. Keeps x and the [tokens, rank] product for backward; the mask is drawn again.
at::Tensor lora_linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, const LowRank& adapter);

/// DoRA: magnitude / |W + scaling B A| * (x W^T + scaling * dropout(x) A^T B^T) + bias, the norms without gradient.
/// magnitude: [out]; squares: [out] float32, squared_norms() of the weight's rows. The dropout is the adapter's alone;
/// PEFT drops the input of a second base product too, which has the same mean and costs as much as the layer itself.
at::Tensor dora_linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, const LowRank& adapter,
                       const at::Tensor& magnitude, const at::Tensor& squares);

}  // namespace tessera::nn
