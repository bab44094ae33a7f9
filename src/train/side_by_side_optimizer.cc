#include "train/side_by_side_optimizer.h"

#include <algorithm>
#include <utility>

#include "fsdp/grads/grad_norm.h"

namespace tessera::train {

SideBySideOptimizer::SideBySideOptimizer(fsdp::FullyShardedDataParallel& model, std::vector<Part> parts)
    : Optimizer(model.parameters(), fsdp::parameter_slices(model), 0.0), model_(model), parts_(std::move(parts)) {}

double SideBySideOptimizer::norm_of(const Part& part) const {
  std::vector<at::Tensor> grads;
  for (const auto& slice : slices_) {
    if (slice.numel == 0 || !part.parameters.contains(slice.name)) continue;
    const auto grad = parameters_[static_cast<std::size_t>(slice.parameter)].grad();
    if (grad.defined()) grads.push_back(grad.view(-1).narrow(0, slice.parameter_offset, slice.numel));
  }
  return fsdp::global_norm(grads, 2.0, *model_.shard_group());
}

void SideBySideOptimizer::step() {
  for (auto& part : parts_) {
    if (steps_ >= part.steps) continue;
    auto& optimizer = *part.optimizer;
    double factor = gradient_factor_;
    if (part.max_grad_norm > 0) {
      part.grad_norm = norm_of(part);
      factor *= fsdp::clip_factor(part.grad_norm, part.max_grad_norm);
    }
    optimizer.scale_next_gradients(factor);
    optimizer.set_lr(part.schedule->lr(steps_));
    optimizer.set_steps(steps_);
    optimizer.step();
  }
  gradient_factor_ = 1;
  ++steps_;
}

bool SideBySideOptimizer::runs_anywhere() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.optimizer->runs_anywhere(); });
}

std::vector<optim::StateSlice> SideBySideOptimizer::state() {
  std::vector<optim::StateSlice> all;
  for (auto& part : parts_)
    for (auto& slice : part.optimizer->state()) all.push_back(std::move(slice));
  return all;
}

bool SideBySideOptimizer::averages() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.optimizer->averages(); });
}

void SideBySideOptimizer::show_average() {
  for (auto& part : parts_) part.optimizer->show_average();
}

void SideBySideOptimizer::show_trained() {
  for (auto& part : parts_) part.optimizer->show_trained();
}

}  // namespace tessera::train
