// What every optimizer keeps after a step, by its tensors' bytes, beside the formula (estimate/optimizer_state.h).
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "base/low_rank_optimizer.h"
#include "estimate/optimizer_state.h"
#include "tessera/optim/factory.h"
#include "unit/tasks/tensor_bytes.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kRows = 320, kColumns = 192;

/// A matrix and a vector, in one flat tensor each, with gradients.
struct Problem {
  std::vector<at::Tensor> parameters = {at::randn({kRows, kColumns}), at::randn({kColumns})};
  std::vector<optim::ParameterSlice> slices = optim::whole_slices(parameters);

  explicit Problem(bool low_rank) {
    for (auto& p : parameters) p.mutable_grad() = at::randn(p.sizes());
    slices[0].low_rank = low_rank;
  }
};

std::int64_t formula(const std::string& optim, const estimate::LowRankShape& shape) {
  const auto vector = estimate::optimizer_state_bytes(optim, "norm.weight", {kColumns});
  if (is_low_rank_optimizer(optim)) return vector + estimate::low_rank_bytes(optim, shape, kRows, kColumns).kept;
  return vector + estimate::optimizer_state_bytes(optim, "layer.weight", {kRows, kColumns});
}

/// Bytes that are there after two steps, of them one with the averaged weights, and were not before the optimizer.
std::int64_t kept_bytes(const std::string& optim, const std::string& args) {
  Problem problem(is_low_rank_optimizer(optim));
  const TensorBytes bytes;
  const auto optimizer =
      optim::make_optimizer(optim, {.lr = 1e-3, .optim_args = args}, problem.parameters, problem.slices, nullptr);
  optimizer->step();
  optimizer->show_average();
  return bytes.now();
}

void expect_formula(const std::string& optim, const std::string& args, const estimate::LowRankShape& shape) {
  const auto kept = static_cast<double>(kept_bytes(optim, args)), planned = static_cast<double>(formula(optim, shape));
  EXPECT_NEAR(kept, planned, 0.02 * planned + 6144) << optim << " " << args;  // 6 KiB: sums of rows in float64
}

TEST(OptimizerMemory, IsWhatTheFormulaSaysForEveryName) {
  for (const auto& optim : optim::optimizer_names()) {
    if (optim == "lorafa") continue;  // trains pairs of LoRA's matrices
    expect_formula(optim, "", {});
  }
}

TEST(OptimizerMemory, OfALowRankFollowsItsRankAndSides) {
  for (const std::string type : {"std", "reverse_std", "left", "right", "full"})
    expect_formula("galore_adamw", "rank=16,proj_type=" + type, {16, type});
  expect_formula("apollo_adamw", "rank=16", {16});
  expect_formula("galore_adafactor", "rank=400", {400});
}

}  // namespace
}  // namespace tessera::tasks
