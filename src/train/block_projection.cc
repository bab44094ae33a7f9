#include "train/block_projection.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

namespace tessera::train {

BlockProjectingOptimizer::BlockProjectingOptimizer(std::unique_ptr<optim::Optimizer> inner,
                                                   fsdp::FullyShardedDataParallel& model, const peft::Oft& method)
    : WrappedOptimizer(std::move(inner), model, "COFT projects blocks") {
  for (const auto& slice : slices_) {
    if (!slice.name.ends_with(peft::Oft::kBlocks) || slice.shape.at(1) == 0) continue;
    parts_.push_back({slice, blocks_, method.radius(slice.shape.at(0))});
    blocks_ += slice.shape.at(0);
  }
}

void BlockProjectingOptimizer::step() {
  const at::NoGradGuard no_grad;
  std::vector<float> buffer;
  const auto values_of = [&](const Part& part) {
    buffer.resize(static_cast<std::size_t>(part.slice.numel));
    const auto& p = parameters_[static_cast<std::size_t>(part.slice.parameter)];
    return numbers_of(p).read(part.slice.parameter_offset, part.slice.numel, buffer.data());
  };
  std::vector<double> norms(static_cast<std::size_t>(blocks_), 0.0);  // of the matrices, which hold each number twice
  for (const auto& part : parts_) {
    if (part.slice.numel == 0) continue;
    const auto* values = values_of(part);
    for (std::int64_t i = 0; i < part.slice.numel; ++i)
      norms[static_cast<std::size_t>(part.block_of(i))] += 2.0 * values[i] * values[i];
  }
  sum_over_ranks(norms);
  for (auto& norm : norms) norm = std::sqrt(norm);
  for (const auto& part : parts_) {
    const auto& slice = part.slice;
    if (slice.numel == 0) continue;
    auto* values = values_of(part);
    for (std::int64_t i = 0; i < slice.numel; ++i) {
      const double norm = norms[static_cast<std::size_t>(part.block_of(i))];
      if (norm > part.radius) values[i] = static_cast<float>(values[i] * (part.radius / norm));
    }
    const auto& p = parameters_[static_cast<std::size_t>(slice.parameter)];
    numbers_of(p).write(slice.parameter_offset, slice.numel, values);
    p.unsafeGetTensorImpl()->bump_version();  // written behind autograd's back
  }
  step_inner();
  gradient_factor_ = 1;
}

}  // namespace tessera::train
