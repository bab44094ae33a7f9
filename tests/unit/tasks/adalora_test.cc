// AdaLoRA on sharded models: who keeps which ranks, what a checkpoint brings back, and what files hold.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "checkpoint/pretrained.h"
#include "checkpoint/training_state.h"
#include "peft/adapter_config.h"
#include "peft/methods/adalora.h"
#include "support/compare.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tasks/sft.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/state.h"
#include "tessera/optim/factory.h"
#include "train/method_optimizer.h"
#include "train/rank_allocation.h"
#include "unit/tasks/adapted_llama.h"
#include "unit/tasks/flag_sweep.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;

json settings() {
  return {{"peft_type", "ADALORA"},
          {"init_r", 5},
          {"target_r", 2},
          {"tinit", 1},
          {"tfinal", 2},
          {"deltaT", 1},
          {"total_step", 8},
          {"lora_alpha", 8},
          {"orth_reg_weight", 0.3},
          {"target_modules", {"q_proj", "down_proj"}}};
}

models::ModelInput rows_of_step(int step, const comm::Communicator& group) {
  constexpr std::int64_t kRows = 6, kLength = 9;
  models::ModelInput in;
  in.input_ids = (at::arange(kRows * kLength) * (7 + 2 * step) % 43 + 5).view({kRows, kLength});
  in.input_ids = in.input_ids.slice(0, group.rank(), std::nullopt, group.size()).contiguous();
  in.labels = in.input_ids.clone();
  in.loss_normalizer = kRows * (kLength - 1);
  in.want_logits = false;
  return in;
}

/// A rank of a run.
struct Rank {
  Rank(const AssembleOptions& options, const std::shared_ptr<comm::Communicator>& group) : a(assemble(options, group)) {
    a.sharded->set_gradient_divisor(1.0);
    optimizer = optim::make_optimizer("adamw_torch", {.lr = 1e-2}, a.sharded->parameters(),
                                      fsdp::parameter_slices(*a.sharded), a.sharded->shard_group());
    optimizer->keep_state_in(a.sharded->offload_store());
    optimizer = train::with_method(std::move(optimizer), *a.sharded, a.adapters->method.get());
    a.model->train();
  }
  double step(int number) {
    const auto loss = (*a.model)(rows_of_step(number, a.sharded->group())).loss;
    loss.backward();
    a.sharded->clip_grad_norm(0.5, *optimizer);
    optimizer->step();
    optimizer->zero_grad();
    return loss.item<double>();
  }
  std::string configuration() const { return peft::adapter_config_json(*a.adapters->method); }
  peft::Values values() {
    peft::Values out;
    a.sharded->visit_full([&](const std::string& name, const at::Tensor& t) { out[name] = t.clone(); },
                          [](const std::string& name) { return name.find(".lora_") != std::string::npos; });
    return out;
  }

  Assembled a;
  std::unique_ptr<optim::Optimizer> optimizer;
};

struct Result {
  json pattern;
  peft::Values values;
  double loss = 0;
};

Result trained(int world, int steps, const AssembleOptions& options) {
  Result result;
  std::mutex mutex;
  std::vector<std::string> configurations;
  comm::run_threads(world, [&](const std::shared_ptr<comm::Communicator>& group) {
    Rank rank(options, group);
    double loss = 0;
    for (int i = 0; i < steps; ++i) loss = rank.step(i);
    auto values = rank.values();
    const std::lock_guard<std::mutex> lock(mutex);
    configurations.push_back(rank.configuration());
    result.loss += loss;
    if (group->rank() == 0) result.values = std::move(values);
  });
  for (const auto& text : configurations) EXPECT_EQ(text, configurations[0]) << "another rank's";
  result.pattern = json::parse(configurations[0]).at("rank_pattern");
  return result;
}

std::int64_t kept(const json& pattern) {
  std::int64_t count = 0;
  for (const auto& list : pattern) count += std::count(list.begin(), list.end(), true);
  return count;
}

TEST(AdaLora, KeepsTheSameRanksOnAnyNumberOfRanks) {
  const auto alone = trained(1, 8, adapted_llama(settings()));
  EXPECT_EQ(kept(alone.pattern), 2 * 4) << alone.pattern;
  for (const int world : {2, 3}) {
    const auto sharded = trained(world, 8, adapted_llama(settings()));
    EXPECT_EQ(sharded.pattern, alone.pattern);
    for (const auto& [name, value] : alone.values) test::expect_close(sharded.values.at(name), value, 1e-4, name);
    EXPECT_NEAR(sharded.loss, alone.loss, 1e-5);
  }
  auto hybrid = adapted_llama(settings());
  hybrid.fsdp.strategy = fsdp::ShardingStrategy::kHybridShard;
  hybrid.fsdp.shard_group_size = 1;
  EXPECT_EQ(trained(2, 8, hybrid).pattern, alone.pattern);
}

TEST(AdaLora, WhatIsNotKeptHasNoEffect) {
  const auto result = trained(2, 8, adapted_llama(settings()));
  for (const auto& [layer, list] : result.pattern.items()) {
    const auto e = result.values.at(layer + ".default").flatten();
    for (std::size_t i = 0; i < list.size(); ++i)
      EXPECT_EQ(e[static_cast<std::int64_t>(i)].item<float>() != 0, list[i].get<bool>()) << layer << " " << i;
  }
}

TEST(AdaLora, CountsThePenaltyOnceAlsoWhereBlocksRunAgain) {
  auto keys = settings();
  keys["init_lora_weights"] = false;  // far from orthogonal
  const auto plain = trained(1, 3, adapted_llama(keys));
  auto again = adapted_llama(keys);
  again.fsdp.activation_checkpointing = fsdp::wrap_classes({"LlamaDecoderLayer"});
  const auto recomputed = trained(2, 3, again);
  EXPECT_NEAR(plain.loss, recomputed.loss, 1e-4 * plain.loss);
  for (const auto& [name, value] : plain.values) test::expect_close(recomputed.values.at(name), value, 1e-3, name);
  keys["orth_reg_weight"] = 0;
  EXPECT_GT(plain.loss, trained(1, 3, adapted_llama(keys)).loss + 0.1);
}

/// What one batch's loss gives the factors, of DeBERTa-v2 whose positions go through query_proj and key_proj, too.
peft::Values gradients_of_deberta(double penalty, bool recomputes, peft::Values* factors) {
  auto keys = settings();
  keys["target_modules"] = {"query_proj", "value_proj"};
  keys["init_lora_weights"] = false;
  keys["orth_reg_weight"] = penalty;
  auto options = adapted_llama(keys);
  options.model_folder = std::string(TESSERA_TEST_DATA) + "/goldens/A_models/deberta_v2_cls";
  if (recomputes) options.fsdp.activation_checkpointing = fsdp::wrap_classes({"DebertaV2Layer"});
  peft::Values out;
  comm::run_threads(1, [&](const std::shared_ptr<comm::Communicator>& group) {
    Rank rank(options, group);
    *factors = rank.values();
    models::ModelInput in;
    in.input_ids = (at::arange(14) * 5 % 43 + 5).view({2, 7});
    in.labels = at::arange(2);
    (*rank.a.model)(in).loss.backward();
    rank.a.sharded->visit_full_grads([&](const std::string& name, const at::Tensor& g) { out[name] = g.clone(); });
  });
  return out;
}

TEST(AdaLora, CountsThePenaltyOnceOfALayerThatRunsTwiceInAPass) {
  peft::Values factors;
  for (const bool recomputes : {false, true}) {
    const auto without = gradients_of_deberta(0, recomputes, &factors);
    const auto with = gradients_of_deberta(0.3, recomputes, &factors);
    for (const auto& [name, value] : factors) {
      if (name.find(".lora_E") != std::string::npos) continue;
      auto f = value.clone().set_requires_grad(true);
      const auto product = name.find(".lora_A") != std::string::npos ? f.matmul(f.t()) : f.t().matmul(f);
      (0.3 / 8 * (product - at::eye(product.size(0))).norm()).backward();  // 2 layers of 2 targets with 2 factors
      test::expect_close(with.at(name) - without.at(name), f.grad(), 1e-4, name);
    }
  }
}

TEST(AdaLora, TrainsInBfloat16WithMastersInHalves) {
  auto options = adapted_llama(settings());
  options.fsdp.precision.param_dtype = at::kBFloat16;
  const auto alone = trained(1, 8, options), sharded = trained(2, 8, options);
  EXPECT_EQ(kept(alone.pattern), 8);
  EXPECT_EQ(kept(sharded.pattern), 8);
  EXPECT_NEAR(alone.loss, trained(1, 8, adapted_llama(settings())).loss, 0.1);
}

TEST(AdaLora, GoesOnFromACheckpointBitForBit) {
  const test::TempFolder folder("adalora_state");
  for (const int first : {1, 4, 7}) {  // before the ranks fall, while they do, and after
    const std::string state = folder.path() + "/" + std::to_string(first);
    const auto straight = trained(2, 8, adapted_llama(settings()));
    comm::run_threads(2, [&](const std::shared_ptr<comm::Communicator>& group) {
      Rank rank(adapted_llama(settings()), group);
      for (int i = 0; i < first; ++i) (void)rank.step(i);
      checkpoint::save_training_state(*rank.a.sharded, *rank.optimizer, state);
    });
    Result resumed;
    comm::run_threads(2, [&](const std::shared_ptr<comm::Communicator>& group) {
      Rank rank(adapted_llama(settings()), group);
      checkpoint::load_training_state(*rank.a.sharded, rank.optimizer.get(), state);
      for (int i = first; i < 8; ++i) (void)rank.step(i);
      auto values = rank.values();
      if (group->rank() != 0) return;
      resumed.values = std::move(values);
      resumed.pattern = json::parse(rank.configuration()).at("rank_pattern");
    });
    EXPECT_EQ(resumed.pattern, straight.pattern);
    for (const auto& [name, value] : straight.values) EXPECT_TRUE(at::equal(resumed.values.at(name), value)) << name;
  }
}

// The best of the checkpoints, not the last one, says which ranks the result holds.
TEST(AdaLora, TheBestModelIsSavedWithTheRanksThatItHad) {
  const test::TempFolder folder("adalora_best");
  const std::string model = folder.path() + "/model", out = folder.path() + "/out";
  make_model(test::kTinyChat, model);
  std::ostringstream said, errors;
  ASSERT_EQ(sft({"--model_name_or_path",
                 model,
                 "--dataset_name",
                 test::kTinyChat,
                 "--dataset_cache_dir",
                 folder.path() + "/cache",
                 "--output_dir",
                 out,
                 "--max_length",
                 "32",
                 "--max_steps",
                 "6",
                 "--per_device_train_batch_size",
                 "4",
                 "--learning_rate",
                 "1e-2",
                 "--use_peft_lora",
                 "--peft_type",
                 "ADALORA",
                 "--peft_args",
                 "init_r=4,target_r=1,tinit=0,tfinal=1,deltaT=1",
                 "--eval_steps",
                 "2",
                 "--save_steps",
                 "2",
                 "--load_best_model_at_end",
                 "--metric_for_best_model",
                 "loss",
                 "--greater_is_better",
                 "true",
                 "--disable_tqdm",
                 "--print_model",
                 "false"},
                said, errors),
            0)
      << errors.str();
  const auto pattern = [](const std::string& at) {
    return json::parse(read_file(at + "/adapter_config.json")).at("rank_pattern");
  };
  const std::string best = json::parse(read_file(out + "/trainer_state.json")).at("best_model_checkpoint");
  ASSERT_NE(pattern(best), pattern(out + "/checkpoint-6")) << said.str();
  EXPECT_EQ(pattern(out), pattern(best));
  EXPECT_EQ(read_file(out + "/adapter_model.safetensors"), read_file(best + "/adapter_model.safetensors"));
}

TEST(AdaLora, SavedRanksAreUsedAndTrainedOnAlsoWhereALayerHasNone) {
  const test::TempFolder folder("adalora_saved");
  for (const int target : {2, 0}) {
    auto keys = settings();
    keys["target_r"] = target;
    const std::string saved = folder.path() + "/" + std::to_string(target);
    at::Tensor before;
    comm::run_threads(2, [&](const std::shared_ptr<comm::Communicator>& group) {
      Rank rank(adapted_llama(keys), group);
      for (int i = 0; i < 8; ++i) (void)rank.step(i);
      checkpoint::save_adapter(*rank.a.sharded, rank.a.adapted(), {}, saved);
      const auto out = logits_of(rank.a);
      if (group->rank() == 0) before = out;
    });
    comm::run_threads(2, [&](const std::shared_ptr<comm::Communicator>& group) {
      Rank rank({.model_folder = kLlama, .adapter_folder = saved}, group);
      test::expect_close(logits_of(rank.a), before, 1e-5, "saved");
      rank.a.model->train();
      if (target > 0) (void)rank.step(0);
      EXPECT_EQ(kept(json::parse(rank.configuration()).at("rank_pattern")), 4 * target);
    });
  }
}

TEST(AdaLora, RefusesAScheduleWithoutAnAllocation) {
  auto keys = settings();
  keys["target_r"] = 9;
  comm::run_threads(1, [&](const std::shared_ptr<comm::Communicator>& group) {
    Rank rank(adapted_llama(keys), group);
    EXPECT_THROW(rank.step(0), ConfigError);
  });
  keys = settings();
  keys.erase("total_step");
  comm::run_threads(1, [&](const std::shared_ptr<comm::Communicator>& group) {
    Rank rank(adapted_llama(keys), group);
    EXPECT_THROW(train::set_total_steps(*rank.optimizer, 3), ConfigError);
    Rank other(adapted_llama(keys), group);
    train::set_total_steps(*other.optimizer, 8);
    EXPECT_EQ(json::parse(other.configuration()).at("total_step"), 8);
  });
}

}  // namespace
}  // namespace tessera::tasks
