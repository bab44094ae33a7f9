#include "tensor/gradient_place.h"

#include <torch/csrc/autograd/variable.h>

namespace tessera::tensor {

std::shared_ptr<PreparedGradient> reserve_gradient(const at::Tensor& parameter) {
  if (!parameter.requires_grad() || !parameter.is_leaf()) return nullptr;
  auto* place = dynamic_cast<GradientPlace*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
  return place ? place->reserve() : nullptr;
}

}  // namespace tessera::tensor
