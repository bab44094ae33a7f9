#pragma once
// The product of a layer whose weight gains a matrix that is made of small tensors, whole or as two factors.
#include "nn/ops/remade.h"
#include "tessera/nn/weight.h"

namespace tessera::peft {

/// Makes [out, in] of the tensors, by differentiable operations.
using MakeDelta = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// x W^T + dropout(x) delta^T + bias as one node; x: [..., in], W frozen. Keeps x and the tensors and makes the delta
/// again in backward. Without dropout a dense W of x's and the delta's dtype is summed with it (one product), else the
/// delta's product, in its own dtype, is added to W's.
at::Tensor delta_product(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& bias,
                         const std::vector<at::Tensor>& tensors, const MakeDelta& make_delta, double dropout = 0);

/// Of a delta scaling * b diag(middle) a, whose input has dropout. a: [R, in], b: [out, R], middle: [R] or undefined.
struct DeltaFactors {
  at::Tensor a, b;
  double scaling = 1.0;
  double dropout = 0.0;
  at::Tensor middle = {};
};
using MakeFactors = std::function<DeltaFactors(const std::vector<at::Tensor>&)>;

/// x W^T + bias + scaling * ((dropout(x) a^T) middle) b^T as one node; W frozen. Keeps x, the tensors, and [N, R] where
/// b or middle trains; makes the factors again in backward.
at::Tensor factor_product(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& bias,
                          const std::vector<at::Tensor>& tensors, const MakeFactors& make_factors);

}  // namespace tessera::peft
