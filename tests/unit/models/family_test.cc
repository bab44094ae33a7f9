// Which config.json files are understood, and what is said about others.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/model.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/nn/block.h"
#include "tessera/nn/init.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
const std::string kGoldens = std::string(TESSERA_TEST_DATA) + "/goldens/A_models/";

class Config : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / ("tessera_family_" + std::to_string(::getpid()))).string();
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::shared_ptr<Model> build(const nlohmann::json& json, ModelConfig* config = nullptr) {
    std::ofstream(folder_ + "/config.json") << json.dump();
    return build_model(folder_, config);
  }

  std::string failure(const nlohmann::json& json) {
    try {
      build(json);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  }

  static nlohmann::json of(const std::string& golden) {
    return nlohmann::json::parse(std::ifstream(kGoldens + golden + "/config.json"));
  }

  std::string folder_;
};

TEST_F(Config, AnUnknownTypeListsTheKnownAndTheNearest) {
  const auto text = failure({{"model_type", "llamma"}});
  EXPECT_NE(text.find("gpt_neox"), std::string::npos) << text;
  EXPECT_NE(text.find("did you mean 'llama'"), std::string::npos) << text;
}

// As transformers' Trainer, which makes config.json's padding token the tokenizer's, and leaves the table as it is.
TEST_F(Config, AClassifiersRowsEndWhereTheGivenPaddingBegins) {
  constexpr std::int64_t kPad = 7;
  for (const auto& own : {nlohmann::json(0), nlohmann::json()}) {
    auto json = of("llama_gqa_rope3");
    json["pad_token_id"] = own;
    std::ofstream(folder_ + "/config.json") << json.dump();
    BuildOptions options;
    options.classifier = ClassifierHead{.config = {.num_labels = 2, .problem = families::ProblemType::kSingleLabel},
                                        .pad_token_id = kPad};
    const auto model = build_model(folder_, nullptr, options);
    nn::reset_parameters(*model, 1);
    const auto logits = [&](const at::Tensor& ids) {
      ModelInput in;
      in.input_ids = ids;
      in.attention_mask = at::ones_like(ids);
      in.want_logits = true;
      return (*model)(std::move(in)).logits;
    };
    const auto padded = at::tensor(std::vector<std::int64_t>{3, kPad, 5, kPad, kPad, 9, 8, 6, 5, 4}).view({2, 5});
    const auto both = logits(padded), alone = logits(padded.narrow(0, 0, 1).narrow(1, 0, 3));
    EXPECT_TRUE(at::allclose(both[0], alone[0], 1e-5, 1e-6)) << own << both << alone;
    both[0].sum().backward();
    const auto parameters = model->named_parameters();
    const auto* table = parameters.find("model.embed_tokens.weight");
    ASSERT_NE(table, nullptr);
    EXPECT_TRUE(table->grad()[kPad].any().item<bool>()) << own;
  }
}

TEST_F(Config, TheDecoderFamilyIsDescribed) {
  ModelConfig config;
  build(of("gpt2"), &config);
  EXPECT_EQ(config.kind, ModelKind::kCausal);
  EXPECT_EQ(config.no_split_classes, std::vector<std::string>{"GPT2Block"});
  EXPECT_EQ(config.default_lora_targets, std::vector<std::string>{"c_attn"});
  EXPECT_EQ(config.task_type, "CAUSAL_LM");
  EXPECT_EQ(config.max_positions, 48);
}

TEST_F(Config, WhatCannotBeComputedIsRefused) {
  auto json = of("llama_gqa_rope3");
  json["rope_scaling"]["rope_type"] = "llama4";
  EXPECT_NE(failure(json).find("llama3"), std::string::npos) << failure(json);
  json = of("llama_gqa_rope3");
  json["num_key_value_heads"] = 3;
  EXPECT_NE(failure(json).find("not a multiple"), std::string::npos) << failure(json);
  json = of("llama_gqa_rope3");
  json["hidden_act"] = "sillu";
  EXPECT_NE(failure(json).find("silu"), std::string::npos) << failure(json);
  json = of("gemma2");
  json["layer_types"] = {"full_attention"};
  EXPECT_NE(failure(json).find("layer_types"), std::string::npos) << failure(json);
}

/// What the first decoder layer reads.
at::Tensor first_input(Model& model, double noise) {
  struct Reads : nn::ForwardHooks {
    void before_forward(const std::vector<at::Tensor*>& inputs) override {
      if (!x.defined()) x = inputs.front()->detach().clone();
    }
    void after_forward(const std::vector<at::Tensor*>&) override {}
    void abort_forward() noexcept override {}
    at::Tensor x;
  } reads;
  const auto set_hooks = [&](nn::ForwardHooks* hooks) {
    for (const auto& module : model.modules())
      if (auto* layer = dynamic_cast<nn::HookedModule*>(module.get());
          layer && layer->class_name().ends_with("DecoderLayer"))
        layer->set_hooks(hooks);
  };
  set_hooks(&reads);
  ModelInput in;
  in.input_ids = at::arange(3, 11).view({1, 8});
  in.embedding_noise = noise;
  model(in);
  set_hooks(nullptr);
  return reads.x;
}

// As a hook on the module of the table has it: Gemma 3's multiplies inside, Gemma 2 what the module gives.
TEST_F(Config, NoiseOnEmbeddingsIsAsLargeAsBehindTheTablesModule) {
  for (const auto& [golden, is_scaled] : {std::pair("gemma2", true), {"gemma3", false}}) {
    const auto model = build(of(golden));
    nn::reset_parameters(*model, 1);
    const double size = of(golden)["hidden_size"], most = 5 / std::sqrt(8 * size) * (is_scaled ? std::sqrt(size) : 1);
    const double reach = (first_input(*model, 5) - first_input(*model, 0)).abs().max().item<double>();
    EXPECT_LE(reach, most * 1.0001) << golden;
    EXPECT_GT(reach, most * 0.9) << golden;
  }
}

// Published GPT-2 files hold the base model alone: names without "transformer.", and the causal masks.
TEST_F(Config, WeightsOfABaseModelLoad) {
  const auto source = io::open_weights(kGoldens + "gpt2");
  std::vector<std::pair<std::string, at::Tensor>> tensors = {{"h.0.attn.bias", at::ones({1})}};
  const std::string prefix = "transformer.";
  for (const auto& info : source->tensors())
    tensors.emplace_back(info.name.substr(prefix.size()), io::read_tensor(*source, info.name));
  io::write_safetensors(folder_ + "/model.safetensors", tensors);
  auto model = build(of("gpt2"));
  EXPECT_NO_THROW(load_weights(*model, *io::open_weights(folder_)));
}

}  // namespace
}  // namespace tessera::models
