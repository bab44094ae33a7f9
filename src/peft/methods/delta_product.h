#pragma once
// The product of a layer whose weight gains a matrix that is made of small tensors.
#include <functional>
#include <vector>

#include "tessera/nn/weight.h"

namespace tessera::peft {

/// Makes [out, in] of the tensors, by differentiable operations.
using MakeDelta = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// x (W + delta)^T + bias as one node; x: [..., in], W frozen. Keeps x and the tensors and makes the delta again in
/// backward. A dense W of x's and the delta's dtype is summed with it (one product), else the delta's product, in its
/// own dtype, is added to W's.
at::Tensor delta_product(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& bias,
                         const std::vector<at::Tensor>& tensors, MakeDelta make_delta);

}  // namespace tessera::peft
