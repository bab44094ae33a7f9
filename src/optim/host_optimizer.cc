#include "optim/host_optimizer.h"

#include <ATen/core/grad_mode.h>

#include "tensor/mapped_zeros.h"

namespace tessera::optim {

HostOptimizer::HostOptimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const Make& make)
    : Optimizer(std::move(parameters), std::move(slices), 0) {
  for (const auto& p : parameters_)
    copies_.push_back(tensor::mapped_zeros(p.numel(), p.scalar_type()).view_as(p).set_requires_grad(true));
  optimizer_ = make(copies_);
  lr_ = optimizer_->lr();
}

void HostOptimizer::step() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& grad = parameters_[i].grad();
    auto& copy = copies_[i].mutable_grad();
    if (!grad.defined()) {
      copy.reset();
      continue;
    }
    if (!copy.defined()) copy = tensor::mapped_zeros(grad.numel(), grad.scalar_type()).view_as(grad);
    copy.copy_(grad);
    copies_[i].copy_(parameters_[i]);  // a checkpoint may have been loaded
  }
  optimizer_->set_lr(lr_);
  optimizer_->set_steps(steps_++);
  optimizer_->scale_next_gradients(gradient_factor_);
  optimizer_->step();
  gradient_factor_ = 1;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (copies_[i].grad().defined()) parameters_[i].copy_(copies_[i]);
}

}  // namespace tessera::optim
