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
  std::vector<double> norms(static_cast<std::size_t>(blocks_), 0.0);  // of the matrices, which hold each number twice
  for (const auto& part : parts_) {
    if (part.slice.numel == 0) continue;
    const auto* values = read(part.slice, buffer);
    for (std::int64_t i = 0; i < part.slice.numel; ++i)
      norms[static_cast<std::size_t>(part.block_of(i))] += 2.0 * values[i] * values[i];
  }
  sum_over_ranks(norms);
  for (auto& norm : norms) norm = std::sqrt(norm);
  for (const auto& part : parts_) {
    const auto& slice = part.slice;
    if (slice.numel == 0) continue;
    auto* values = read(slice, buffer);
    for (std::int64_t i = 0; i < slice.numel; ++i) {
      const double norm = norms[static_cast<std::size_t>(part.block_of(i))];
      if (norm > part.radius) values[i] = static_cast<float>(values[i] * (part.radius / norm));
    }
    write(slice, values);
  }
  step_inner();
  gradient_factor_ = 1;
}

}  // namespace tessera::train
