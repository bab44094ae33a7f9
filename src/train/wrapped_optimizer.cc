#include "train/wrapped_optimizer.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::train {

WrappedOptimizer::WrappedOptimizer(std::unique_ptr<optim::Optimizer> inner, fsdp::FullyShardedDataParallel& model,
                                   const std::string& what)
    : Optimizer(model.parameters(), fsdp::parameter_slices(model), inner->lr()),
      inner_(std::move(inner)),
      group_(model.shard_group()),
      offload_(model.offload_store()) {
  if (inner_->averages())
    throw ConfigError(what + " of what is trained, and a schedule-free optimizer evaluates and saves an average; " +
                          "choose another optimizer",
                      "optim");
  if (std::any_of(parameters_.begin(), parameters_.end(), [](const auto& p) { return !p.is_cpu(); }))
    throw ConfigError(what + " on the CPU; set fsdp_offload_params: true, which keeps its parameters there",
                      "fsdp_offload_params");
}

WrappedOptimizer::~WrappedOptimizer() = default;

void WrappedOptimizer::step_inner() {
  inner_->set_lr(lr_);
  inner_->set_steps(steps_);
  inner_->scale_next_gradients(gradient_factor_);
  inner_->step();
  steps_ = inner_->steps();
}

optim::FlatNumbers WrappedOptimizer::numbers_of(const at::Tensor& parameter) const {
  if (const auto* halves = offload_ ? offload_->halves_of(parameter) : nullptr) return {.halves = halves};
  return {.data = parameter.mutable_data_ptr(), .dtype = parameter.scalar_type()};
}

void WrappedOptimizer::sum_over_ranks(std::vector<double>& numbers) const {
  if (group_->size() == 1) return;
  const auto shared = at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kDouble);
  group_->all_reduce(shared, comm::ReduceOp::kSum)->wait();
}

}  // namespace tessera::train
