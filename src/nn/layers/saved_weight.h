#pragma once
// A Weight from an autograd node's forward to its backward.
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/nn/weight.h"

namespace tessera::nn {

/// Beside weight.tensor() in save_for_backward(), which is all that a dense one needs.
void save_weight(torch::autograd::AutogradContext* context, const Weight& weight);
/// tensor: as it was saved.
Weight saved_weight(torch::autograd::AutogradContext* context, const at::Tensor& tensor);

}  // namespace tessera::nn
