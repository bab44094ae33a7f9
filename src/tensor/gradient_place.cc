#include "tensor/gradient_place.h"

#include <torch/csrc/autograd/variable.h>

namespace tessera::tensor {

namespace {

GradientPlace* place_of(const at::Tensor& parameter) {
  if (!torch::autograd::impl::get_autograd_meta(parameter)) return nullptr;
  return dynamic_cast<GradientPlace*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

}  // namespace

bool has_gradient_place(const at::Tensor& parameter) {
  return place_of(parameter) != nullptr;
}

std::shared_ptr<PreparedGradient> reserve_gradient(const at::Tensor& parameter) {
  if (!parameter.requires_grad() || !parameter.is_leaf()) return nullptr;
  auto* place = place_of(parameter);
  return place ? place->reserve() : nullptr;
}

}  // namespace tessera::tensor
