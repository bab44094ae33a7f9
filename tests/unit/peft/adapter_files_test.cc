// What adapter files hold, how they are read, and what adapters a config asks for.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "peft/adapter_files.h"
#include "peft/merge.h"
#include "peft/methods/lora.h"
#include "peft/slots.h"
#include "support/compare.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "unit/peft/with_adapter.h"

namespace tessera::peft {
namespace {

std::string failure(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(AdapterEntries, AreTheTensorsThatPeftWrites) {
  for (const char* run : {"t5u_dora_save_head", "t5_layers_patterns"}) {
    const std::string folder = kFolder + run + "/adapter_init";
    const auto t5 = load(read_lora(folder), run == std::string("t5u_dora_save_head") ? "base_t5u" : "base_t5");
    const auto theirs = io::open_weights(folder + "/adapter_model.safetensors");
    const auto entries = adapter_entries(*t5.model, *t5.report.method);
    EXPECT_EQ(entries.size(), theirs->tensors().size()) << run;
    for (const auto& e : entries) EXPECT_TRUE(theirs->find(e.file_name)) << e.file_name;
  }
}

TEST(InitialiseFromWeights, EqualPefts) {
  const std::string folder = kFolder + "t5u_dora_save_head/adapter_init";
  auto t5 = load(read_lora(folder), "base_t5u");
  load_adapter(*t5.model, *t5.report.method, folder);
  std::map<std::string, at::Tensor> stored;
  for (const auto& slot : adapted_slots(*t5.model)) {
    stored[slot.name] = slot.parameter("lora_magnitude_vector.default.weight").detach().clone();
    slot.parameter("lora_magnitude_vector.default.weight").detach().fill_(1);
  }
  initialise_from_weights(*t5.model, *t5.report.method, 7);
  for (const auto& slot : adapted_slots(*t5.model))
    test::expect_close(slot.parameter("lora_magnitude_vector.default.weight"), stored.at(slot.name), 1e-6, slot.name);
}

TEST(MergeAdapters, WithMagnitudesAndASavedHeadEqualsPefts) {
  const std::string folder = kFolder + "t5u_dora_save_head/adapter_final";
  auto t5 = load(read_lora(folder), "base_t5u");
  load_adapter(*t5.model, *t5.report.method, folder);
  merge_adapters(*t5.model, *t5.report.method);
  const auto merged = io::open_weights(kFolder + "t5u_dora_save_head/merged");
  for (const auto& item : t5.model->named_parameters())
    test::expect_close(item.value(), io::read_tensor(*merged, item.key()), 2e-6, item.key());
}

TEST(ModulesToSave, TrainInPlaceAndCountAsPeftCounts) {
  Lora config;
  config.modules_to_save = {"lm_head"};
  const auto t5 = load(config, "base_t5u");
  EXPECT_EQ(t5.report.saved, std::vector<std::string>{"lm_head"});
  const auto adapters = nn::adapter_parameters(*t5.model);
  std::int64_t trained = 0, all = 0;
  for (const auto& p : t5.model->named_parameters()) {
    all += p.value().numel();
    if (!adapters.contains(p.key())) {
      EXPECT_EQ(p.value().requires_grad(), p.key() == "lm_head.weight") << p.key();
    }
    if (p.value().requires_grad()) trained += p.value().numel();
  }
  EXPECT_EQ(t5.report.trainable, trained);
  EXPECT_EQ(t5.report.total, all + 96 * 24);  // the frozen original
}

TEST(ModulesToSave, ThatMatchNothingAreAnError) {
  Lora config;
  config.modules_to_save = {"lm_head"};
  EXPECT_NE(failure([&] { load(config, "base_t5"); }).find("no module's name ends with 'lm_head'"), std::string::npos);
}

TEST(ModulesToSave, APartOfAnotherNamedModuleIsRefused) {
  Lora config;
  config.target_modules = {"o_proj"};
  config.modules_to_save = {"k_proj", "1.self_attn"};
  EXPECT_NE(failure([&] {
              load(config, "base_llama");
            }).find("'model.layers.1.self_attn.k_proj' and 'model.layers.1.self_attn', which it is a part of"),
            std::string::npos);
  config.modules_to_save = {"k_proj"};
  EXPECT_EQ(load(config, "base_llama").report.saved.size(), 2u);
}

// PEFT's prompt reads the base model's table.
TEST(ModulesToSave, TheTableBehindVirtualTokensIsRefused) {
  const auto config = read_peft_keys({{"peft_type", "PROMPT_TUNING"},
                                      {"num_virtual_tokens", 3},
                                      {"task_type", "CAUSAL_LM"},
                                      {"modules_to_save", {"embed_tokens"}}},
                                     "the test");
  EXPECT_NE(failure([&] { load(*config, "base_llama"); }).find("modules_to_save: 'model.embed_tokens'"),
            std::string::npos);
}

TEST(Targets, ThatAreAllLeftOutSayWhatLeavesThemOut) {
  Lora config;
  config.target_modules = config.exclude_modules = {"q_proj"};
  EXPECT_NE(failure([&] { load(config, "base_llama"); }).find("'q_proj' matches is left out by exclude_modules"),
            std::string::npos);
}

TEST(EmbeddingAdapters, AreZeroAtFirstAndKeepTheBaseWeightAsPeftDoes) {
  Lora config;
  config.target_modules = {"shared", "q"};
  const auto t5 = load(config, "base_t5u");
  const auto entries = adapter_entries(*t5.model, *t5.report.method);
  const auto has = [&](const std::string& name) {
    return std::any_of(entries.begin(), entries.end(), [&](const auto& e) { return e.file_name == name; });
  };
  EXPECT_TRUE(has("base_model.model.shared.lora_embedding_A"));
  EXPECT_TRUE(has("base_model.model.shared.lora_embedding_B"));
  EXPECT_FALSE(has("base_model.model.shared.base_layer.weight"));  // only of embed_tokens and lm_head
  for (const auto& slot : adapted_slots(*t5.model)) {
    if (slot.embedding) {
      EXPECT_EQ(slot.parameter("lora_embedding_A.default").abs().max().item<float>(), 0.0f);
    }
  }
}

// peft/utils/save_and_load.py: not where using_trainable_tokens.
TEST(EmbeddingAdapters, OfChosenTokensLeaveTheTableOutOfTheFile) {
  Lora config;
  config.target_regex = ".*q_proj";
  config.trainable_token_indices = {3, 8};
  const auto llama = load(config, "base_llama");
  std::vector<std::string> of_table;
  for (const auto& e : adapter_entries(*llama.model, *llama.report.method))
    if (e.file_name.find("embed_tokens") != std::string::npos) of_table.push_back(e.file_name);
  EXPECT_EQ(of_table,
            std::vector<std::string>{"base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"});
}

TEST(AdapterFile, RefusesTheAdapterOfAnotherConfig) {
  const auto folder = kFolder + "t5u_dora_save_head/adapter_init";
  auto config = read_lora(folder);
  config.target_modules = {"q"};
  auto t5 = load(config, "base_t5u");
  EXPECT_NE(failure([&] { load_adapter(*t5.model, config, folder); }).find("no part of the adapter"),
            std::string::npos);
  config = read_lora(folder);
  config.r = 5;
  auto other = load(config, "base_t5u");
  EXPECT_NE(failure([&] { load_adapter(*other.model, config, folder); }).find("] for this model"), std::string::npos);
}

TEST(AdapterFile, EmbeddingsThatItKeepsComeFromIt) {
  const auto folder = kFolder + "t5u_dora_save_head/adapter_final";
  auto config = read_lora(folder);
  config.modules_to_save.clear();  // as after resizing the vocabulary: kept, not trained
  auto t5 = load(config, "base_t5u");
  load_adapter(*t5.model, config, folder);
  const auto kept =
      io::read_tensor(*io::open_weights(folder + "/adapter_model.safetensors"), "base_model.model.lm_head.weight");
  EXPECT_TRUE(torch::equal(t5.model->named_parameters()["lm_head.weight"].detach(), kept));
  config.kept_embeddings = {"lm_head"};
  const auto entries = adapter_entries(*t5.model, config);
  EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [](const auto& e) {
    return e.parameter == "lm_head.weight" && e.file_name == "base_model.model.lm_head.weight";
  }));
}

TEST(Lora, SettingsThatContradictEachOtherAreRefusedByName) {
  Lora config;
  config.target_regex = ".*q";
  config.layers_to_transform = {1};
  EXPECT_NE(failure([&] { load(config, "base_t5u"); }).find("layers_to_transform"), std::string::npos);
  config = {};
  config.layers_pattern = {"block"};
  EXPECT_NE(failure([&] { load(config, "base_t5u"); }).find("layers_pattern"), std::string::npos);
  config = {};
  config.init_lora_weights = "corda";
  EXPECT_NE(failure([&] { load(config, "base_t5u"); }).find("found 'corda'"), std::string::npos);
}

}  // namespace
}  // namespace tessera::peft
