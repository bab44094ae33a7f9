#include "train/wrapped_optimizer.h"

#include <ATen/ops/from_blob.h>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

at::Tensor part_of(const at::Tensor& parameter, const optim::ParameterSlice& slice) {
  return parameter.detach().view(-1).narrow(0, slice.parameter_offset, slice.numel);
}

}  // namespace

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

float* WrappedOptimizer::read(const optim::ParameterSlice& slice, std::vector<float>& buffer) const {
  const auto& parameter = parameters_[static_cast<std::size_t>(slice.parameter)];
  buffer.resize(static_cast<std::size_t>(slice.numel));
  if (parameter.is_cpu()) return numbers_of(parameter).read(slice.parameter_offset, slice.numel, buffer.data());
  at::from_blob(buffer.data(), {slice.numel}).copy_(part_of(parameter, slice));
  return buffer.data();
}

void WrappedOptimizer::write(const optim::ParameterSlice& slice, const float* values) const {
  const auto& parameter = parameters_[static_cast<std::size_t>(slice.parameter)];
  if (parameter.is_cpu())
    numbers_of(parameter).write(slice.parameter_offset, slice.numel, values);
  else
    part_of(parameter, slice).copy_(at::from_blob(const_cast<float*>(values), {slice.numel}));
  parameter.unsafeGetTensorImpl()->bump_version();  // the CPU's was written behind autograd's back
}

void WrappedOptimizer::sum_over_ranks(std::vector<double>& numbers) const {
  if (group_->size() == 1) return;
  const auto shared = at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kDouble);
  group_->all_reduce(shared, comm::ReduceOp::kSum)->wait();
}

}  // namespace tessera::train
