// LoRA over replicated layers: PEFT's numbers (tests/data/layer_replication), sharded or not, over one copy of the
// base.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "checkpoint/pretrained.h"
#include "checkpoint/training_state.h"
#include "models/generation.h"
#include "peft/replication/replicated_layers.h"
#include "support/compare.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/factory.h"
#include "unit/tasks/adapted_llama.h"
#include "unit/tasks/adapter_runs.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;

const std::string kReplicated = std::string(TESSERA_TEST_DATA) + "/layer_replication/";

struct ReplicatedRun {
  int world = 1;
  bool recompute = false;
  int begin = 0, end = 3;          // steps
  std::string from = {}, to = {};  // checkpoints
};

struct ReplicatedResult {
  std::vector<double> losses = {0, 0, 0};
  at::Tensor before, after;  // logits
};

/// The rows of a step, as make.py has them; this rank's.
models::ModelInput replicated_rows(int step, const comm::Communicator& group) {
  models::ModelInput in;
  const auto all = (at::arange(4 * 9) * (7 + 2 * step)).remainder(90).add(3).view({4, 9});
  in.input_ids = all.slice(0, group.rank(), std::nullopt, group.size()).contiguous();
  in.labels = in.input_ids;
  in.loss_normalizer = 32;
  return in;
}

at::Tensor logits_of_rows(const Assembled& a, const at::Tensor& ids) {
  a.model->eval();
  const at::NoGradGuard no_grad;
  models::ModelInput in;
  in.input_ids = ids;
  const auto logits = (*a.model)(in).logits.clone();
  a.model->train();
  return logits;
}

/// Trains what PEFT began; the adapter goes to `saved`.
ReplicatedResult train_replicated(const std::string& name, const ReplicatedRun& run, const std::string& saved) {
  ReplicatedResult result;
  std::mutex mutex;
  const auto ids = io::read_tensor(*io::open_safetensors(kReplicated + name + "/expect.safetensors"), "input_ids");
  auto options = adapter_runs::laid_out(
      {.model_folder = kLlama, .adapter_folder = kReplicated + name + "/start"},
      {run.world, run.recompute ? fsdp::ShardingStrategy::kShardGradOp : fsdp::ShardingStrategy::kFullShard});
  if (run.recompute) options.fsdp.activation_checkpointing = fsdp::same_as_wrap();
  comm::run_threads(run.world, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto a = assemble(options, group);
    a.sharded->set_gradient_divisor(1.0);
    const auto optimizer = optim::make_optimizer("adamw_torch", {.lr = 5e-3}, a.sharded->parameters(),
                                                 fsdp::parameter_slices(*a.sharded), a.sharded->shard_group());
    if (!run.from.empty()) checkpoint::load_training_state(*a.sharded, optimizer.get(), run.from);
    const auto before = logits_of_rows(a, ids);
    for (int step = run.begin; step < run.end; ++step) {
      const auto loss = (*a.model)(replicated_rows(step, *group)).loss;
      loss.backward();
      optimizer->step();
      optimizer->zero_grad();
      const std::lock_guard<std::mutex> lock(mutex);
      result.losses[static_cast<std::size_t>(step)] += loss.item<double>();
    }
    if (!run.to.empty()) checkpoint::save_training_state(*a.sharded, *optimizer, run.to);
    const auto after = logits_of_rows(a, ids);
    checkpoint::save_adapter(*a.sharded, a.adapted(), {.dtype = at::kFloat}, saved);
    if (group->rank() != 0) return;
    result.before = before;
    result.after = after;
  });
  return result;
}

class LayerReplication : public testing::TestWithParam<const char*> {};

TEST_P(LayerReplication, TrainsAsPeftDoesOnAnyNumberOfRanks) {
  const std::string name = GetParam();
  const test::TempFolder folder("replication");
  const auto expected = io::open_safetensors(kReplicated + name + "/expect.safetensors");
  const auto losses = io::read_tensor(*expected, "losses");
  for (const ReplicatedRun& run :
       {ReplicatedRun{}, ReplicatedRun{.world = 2}, ReplicatedRun{.world = 3, .recompute = true}}) {
    const auto got = train_replicated(name, run, folder.path());
    const auto what = name + " on " + std::to_string(run.world);
    test::expect_close(got.before, io::read_tensor(*expected, "logits_start"), 1e-5, what);
    for (int step = 0; step < 3; ++step)
      EXPECT_NEAR(got.losses[static_cast<std::size_t>(step)], losses[step].item<double>(), 1e-5 * 5) << what << step;
    test::expect_close(got.after, io::read_tensor(*expected, "logits_end"), 1e-3, what);
    const auto ours = io::open_weights(folder.path() + "/adapter_model.safetensors");
    const auto theirs = io::open_weights(kReplicated + name + "/end/adapter_model.safetensors");
    ASSERT_EQ(ours->tensors().size(), theirs->tensors().size());
    for (const auto& info : theirs->tensors()) {
      ASSERT_NE(ours->find(info.name), nullptr) << info.name;
      EXPECT_EQ(ours->find(info.name)->shape, info.shape) << info.name;
    }
    const auto loaded = assemble({.model_folder = kLlama, .adapter_folder = folder.path()}, comm::make_solo());
    test::expect_close(logits_of_rows(loaded, io::read_tensor(*expected, "input_ids")), got.after, 1e-5, what);
  }
}

TEST_P(LayerReplication, GoesOnBitForBit) {
  const test::TempFolder folder("replication");
  const auto straight = train_replicated(GetParam(), {.world = 2}, folder.path());
  train_replicated(GetParam(), {.world = 2, .end = 1, .to = folder.path() + "/state"}, folder.path());
  const auto resumed =
      train_replicated(GetParam(), {.world = 2, .begin = 1, .from = folder.path() + "/state"}, folder.path());
  EXPECT_TRUE(at::equal(resumed.after, straight.after));
}

INSTANTIATE_TEST_SUITE_P(Peft, LayerReplication, testing::Values("lora", "dora"));

TEST(ReplicatedLayers, HoldTheFrozenWeightsOnce) {
  const auto frozen = [](const json& ranges) {
    std::int64_t elements = 0;
    comm::run_threads(2, [&](const std::shared_ptr<comm::Communicator>& group) {
      const json keys = {
          {"peft_type", "LORA"}, {"r", 1}, {"target_modules", {"q_proj"}}, {"layer_replication", ranges}};
      const auto a =
          assemble(adapter_runs::laid_out(adapted_llama(keys), {2, fsdp::ShardingStrategy::kFullShard}), group);
      if (group->rank() != 0) return;
      for (const auto& shard : a.sharded->shards())
        if (!shard.trainable) elements += shard.local.numel();
    });
    return elements;
  };
  EXPECT_EQ(frozen(json({{0, 2}, {0, 2}, {0, 2}, {0, 2}})), frozen(nullptr));
}

TEST(ReplicatedLayers, KeepACacheForEachPlace) {
  const auto a = assemble({.model_folder = kLlama, .adapter_folder = kReplicated + "lora/start"}, comm::make_solo());
  a.model->eval();
  const at::NoGradGuard no_grad;
  auto ids = (at::arange(10) * 5 % 43 + 3).view({2, 5});
  models::GenerationConfig config;
  config.max_new_tokens = 4;
  config.eos_token_ids = {};
  const auto cached = models::generate(*a.model, ids, at::ones_like(ids), config).sequences;
  for (int i = 0; i < 4; ++i) ids = at::cat({ids, logits_of_rows(a, ids).select(1, -1).argmax(-1, true)}, 1);
  EXPECT_TRUE(at::equal(cached, ids)) << cached << ids;
}

TEST(ReplicatedLayers, RefuseByNameWhatPeftRefusesToo) {
  const auto refusal = [](const std::function<void()>& body) {
    try {
      body();
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("nothing was refused");
  };
  const auto with = [&](const json& keys, const char* base = "base_llama") {
    json all = {{"peft_type", "LORA"}, {"r", 2}};
    all.update(keys);
    return refusal([&] {
      assemble({.model_folder = std::string(TESSERA_TEST_DATA) + "/goldens/B_train/" + base,
                .method = peft::read_peft_keys(all, "the test")},
               comm::make_solo());
    });
  };
  const auto twice = json({{0, 2}, {1, 2}});
  EXPECT_NE(with({{"layer_replication", json({{0, 3}})}}).find("there are 2"), std::string::npos);
  EXPECT_NE(with({{"layer_replication", json({{1, 1}})}}).find("ranges"), std::string::npos);
  EXPECT_NE(with({{"layer_replication", twice}}, "base_t5").find("model.layers"), std::string::npos);
  EXPECT_NE(with({{"layer_replication", twice}, {"bias", "all"}}).find("goes without bias"), std::string::npos);
  EXPECT_NE(with({{"layer_replication", twice}, {"init_lora_weights", "pissa"}}).find("pissa"), std::string::npos);
  EXPECT_NE(with({{"layer_replication", twice}, {"modules_to_save", {"up_proj"}}}).find("modules_to_save"),
            std::string::npos);
  const auto start = kReplicated + "lora/start";
  EXPECT_NE(refusal([&] {
              const auto a = assemble({.model_folder = kLlama, .adapter_folder = start}, comm::make_solo());
              a.adapters->method->check_can_merge(*a.model);
            }).find("cannot be merged"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              assemble({.model_folder = kLlama, .several = {{"one", start}, {"two", start}}}, comm::make_solo());
            }).find("layer_replication"),
            std::string::npos);
}

TEST(ReplicatedLayers, ParametersAreNamedByTheirPlaces) {
  EXPECT_EQ(peft::name_at_place("model.layers.2.mlp.up_proj.places.14.lora_A.default.weight"),
            "model.layers.14.mlp.up_proj.lora_A.default.weight");
  EXPECT_EQ(peft::name_at_place("model.layers.2.mlp.up_proj.weight"), "model.layers.2.mlp.up_proj.weight");
}

}  // namespace
}  // namespace tessera::tasks
