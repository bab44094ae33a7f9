// What every optimizer keeps after a step, by its tensors' bytes, beside the formula (estimate/optimizer_state.h).
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/low_rank_optimizer.h"
#include "estimate/optimizer_state.h"
#include "estimate/plan_request.h"
#include "families/families.h"
#include "models/model.h"
#include "support/temp_folder.h"
#include "tessera/optim/factory.h"
#include "train/low_rank_targets.h"
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

using Bytes = std::map<std::string, std::int64_t>;  // of the matrices that are seen through a low rank

Bytes of_run(const std::string& folder, const std::vector<std::string>& targets) {
  const auto model = models::build_model(folder, nullptr);
  const auto parameters = model->named_parameters();
  Bytes out;
  for (const auto& name : train::low_rank_weights(targets, *model)) {
    const auto sizes = parameters[name].sizes();
    out[name] = estimate::low_rank_bytes("galore_adamw", {.rank = 4}, sizes[0], sizes[1]).kept;
  }
  return out;
}

Bytes estimated(const std::string& folder, const std::vector<std::string>& targets) {
  const estimate::PlanRequest request{.optim = "galore_adamw", .optim_args = "rank=4", .optim_target_modules = targets};
  Bytes out;
  for (const auto& p : estimate::parameters_of(request, estimate::read_model_tensors(folder)))
    if (p.own_state_bytes > 0) out[p.name] = p.own_state_bytes;
  return out;
}

// GPT-2's layers are Conv1D, which GaLore does not see; heads outside of blocks, poolers and routers it does.
TEST(OptimizerMemory, OfALowRankIsEstimatedForTheMatricesThatARunChoosesInEveryFamily) {
  const test::TempFolder folder("low_rank_targets");
  std::vector<nlohmann::json> configs;
  for (const auto& family : families::families()) configs.push_back({{"model_type", family.model_type}});
  configs.push_back({{"model_type", "llama"}, {"tie_word_embeddings", true}});
  configs.push_back({{"model_type", "bert"}, {"architectures", {"BertForSequenceClassification"}}});
  configs.push_back({{"model_type", "gpt2"}, {"architectures", {"GPT2ForSequenceClassification"}}});
  configs.push_back({{"model_type", "deberta-v2"}, {"relative_attention", true}, {"position_biased_input", true}});
  std::size_t chosen = 0;
  for (const auto& config : configs) {
    std::ofstream(folder.path() + "/config.json") << config.dump();
    for (const std::vector<std::string>& targets :
         {std::vector<std::string>{"all-linear"}, {"q_proj", "query"}, {R"(.*\.1\..*(proj|dense))"}, {"head", "mlp"}}) {
      const auto expected = of_run(folder.path(), targets);
      EXPECT_EQ(estimated(folder.path(), targets), expected) << config << " " << targets[0];
      chosen += expected.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(chosen, 2 * configs.size());
}

}  // namespace
}  // namespace tessera::tasks
