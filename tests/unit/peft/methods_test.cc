// Every method: its configuration as PEFT writes it, and what it makes of a layer.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "models/generation.h"
#include "peft/adapter_config.h"
#include "peft/adapter_files.h"
#include "peft/merge.h"
#include "peft/methods/block_dropout.h"
#include "peft/methods/fourierft.h"
#include "peft/methods/ia3.h"
#include "peft/methods/lora.h"
#include "peft/methods/prompt_tuning.h"
#include "support/compare.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "unit/peft/with_adapter.h"

namespace tessera::peft {
namespace {

using nlohmann::json;

const std::string kPeft = std::string(TESSERA_TEST_DATA) + "/goldens/J_peft/";

/// Python writes sets in any order.
json sorted_lists(json document) {
  for (auto& value : document)
    if (value.is_array()) std::sort(value.begin(), value.end());
  return document;
}

class MethodConfig : public testing::TestWithParam<const char*> {};

TEST_P(MethodConfig, IsWrittenWithTheKeysAndValuesThatPeftWrites) {
  const std::string folder = std::string(TESSERA_TEST_DATA) + "/goldens/" + GetParam() + "/adapter_init";
  std::vector<std::string> notes;
  const auto ours = json::parse(adapter_config_json(*read_adapter_config(folder, &notes)));
  EXPECT_EQ(sorted_lists(ours), sorted_lists(json::parse(read_file(folder + "/adapter_config.json"))));
  EXPECT_EQ(notes, std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(
    Goldens, MethodConfig,
    testing::Values("B_train/t5_lora_qv", "B_train/t5_layers_patterns", "B_train/llama_dora", "J_peft/llama_ia3",
                    "J_peft/bert_ia3_cls", "J_peft/llama_prompt", "J_peft/t5_prompt", "J_peft/bert_prompt_cls",
                    "J_peft/llama_loha", "J_peft/llama_lokr_both", "J_peft/llama_vera", "J_peft/llama_vblora",
                    "J_peft/llama_randlora", "J_peft/llama_fourierft", "J_peft/llama_miss_bat", "J_peft/llama_hra",
                    "J_peft/llama_oft", "J_peft/llama_oft_exact", "J_peft/llama_boft_butterfly", "J_peft/llama_road_2",
                    "J_peft/bert_road_4_cls", "J_peft/llama_shira", "J_peft/bert_shira_cls", "J_peft/llama_waveft_sym4",
                    "J_peft/llama_ln", "J_peft/bert_ln_cls", "J_peft/llama_trainable_tokens",
                    "J_peft/llama_lora_tokens", "J_peft/bert_lora_bias", "J_peft/llama_lora_pissa",
                    "J_peft/llama_prefix_projection", "J_peft/t5_prefix", "J_peft/llama_adalora", "J_peft/llama_alora",
                    "J_peft/llama_gralora", "J_peft/bert_delora_cls", "J_peft/llama_c3a", "J_peft/llama_hira",
                    "J_peft/gpt2_hira", "J_peft/llama_pvera", "J_peft/gpt2_pvera", "J_peft/llama_psoft",
                    "J_peft/bert_psoft_cls", "J_peft/llama_unilora", "J_peft/bert_unilora_cls", "J_peft/llama_beft",
                    "J_peft/bert_beft_cls", "J_peft/llama_ptuning_lstm", "J_peft/t5_ptuning_mlp"));

TEST(DefaultTargets, AreThoseOfPeftsTables) {
  const auto tables = json::parse(read_file(std::string(TESSERA_TEST_DATA) + "/peft_targets/targets.json"));
  for (const auto& [type, families] : tables.items()) {
    for (const auto& [family, expected] : families.items()) {
      models::ModelConfig config;
      config.model_type = family;
      config.default_lora_targets = tables["LORA"].value(family, std::vector<std::string>());
      const auto method = make_method(type);
      method->resolve(config);
      auto found = json::parse(adapter_config_json(*method))["target_modules"];
      std::sort(found.begin(), found.end());
      EXPECT_EQ(found, expected) << type << " on " << family;
    }
  }
}

// peft/tuners/tuners_utils.py: current_key of a target parameter ends with the parameter's name.
TEST(TargetParameters, AreFoundInPatternsByTheirWholeName) {
  Lora lora;
  lora.r = lora.lora_alpha = 8;
  lora.target_modules = {"v_proj"};
  lora.target_parameters = {"q_proj.weight"};
  lora.alpha_pattern = {{"q_proj", 2}, {"v_proj", 2}};
  lora.rank_pattern = {{"q_proj.weight", 4}};
  EXPECT_EQ(lora.rank_of("layers.0.q_proj"), 4);
  EXPECT_EQ(lora.scaling_of("layers.0.q_proj"), 2.0);
  EXPECT_EQ(lora.scaling_of("layers.0.v_proj"), 0.25);
}

// Golden folders bert_mlm_head and distilbert_mlm_head of J_peft train like PEFT.
TEST(MaskedLm, AHeadTrainsApartFromTheTableAndNotWithoutItsBias) {
  for (const bool tied : {true, false}) {
    SCOPED_TRACE(tied);
    const test::TempFolder folder("masked_lm");
    auto config = json::parse(read_file(std::string(TESSERA_TEST_DATA) + "/goldens/A_models/bert_mlm/config.json"));
    config["tie_word_embeddings"] = tied;
    write_file_atomically(folder.path() + "/config.json", config.dump());
    const auto trained = [&](const std::string& saved) {
      models::ModelConfig family;
      const auto model = models::build_model(folder.path(), &family);
      Lora lora;
      lora.target_modules = {"query"};
      lora.modules_to_save = {saved};
      EXPECT_EQ(apply_adapter(*model, family, lora).untied, tied);
      std::set<std::string> names;
      for (const auto& item : model->named_parameters())
        if (item.value().requires_grad() && item.key().find("lora_") == std::string::npos &&
            item.key().find("transform") == std::string::npos)
          names.insert(item.key());
      return names;
    };
    EXPECT_EQ(trained("cls"), (std::set<std::string>{"cls.predictions.bias", "cls.predictions.decoder.weight"}));
    EXPECT_EQ(trained("word_embeddings"), std::set<std::string>{"bert.embeddings.word_embeddings.weight"});
    try {
      trained("decoder");
      FAIL() << "its bias would not train";
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find("name the whole head, 'cls'"), std::string::npos) << e.what();
    }
  }
}

TEST(Classifiers, AreTrainedWholeWhereTheTaskTypeSaysSo) {
  for (const std::string task_type : {"", "SEQ_CLS"}) {
    models::ModelConfig family;
    const auto model = models::build_model(kFolder + "base_bert", &family);
    ASSERT_EQ(family.kind, models::ModelKind::kSequenceClassification);
    Lora lora;
    lora.task_type = task_type;
    lora.target_modules = {"query"};
    EXPECT_EQ(apply_adapter(*model, family, lora).saved.empty(), task_type.empty());
  }
}

/// PEFT's folder of `run` with other places and the config to go with them.
class ShiraMask : public testing::Test {
 protected:
  std::string with_places(const std::function<at::Tensor(const at::Tensor&)>& change) {
    const std::string golden = kPeft + "llama_shira/adapter_final";
    auto config = json::parse(read_file(golden + "/adapter_config.json"));
    config["mask_type"] = "mine";
    write_file_atomically(folder_.path() + "/adapter_config.json", config.dump());
    const auto file = io::open_safetensors(golden + "/adapter_model.safetensors");
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& info : file->tensors()) {
      const auto t = io::read_tensor(*file, info.name);
      tensors.emplace_back(info.name, info.name.ends_with("shira_indices") ? change(t) : t);
    }
    io::write_safetensors(folder_.path() + "/adapter_model.safetensors", tensors);
    return folder_.path();
  }
  const test::TempFolder folder_{"shira_mask"};
};

TEST_F(ShiraMask, OfTheFileCounts) {
  const auto folder = with_places([](const at::Tensor& places) { return places.flip(1).contiguous(); });
  const auto adapted = load(*read_adapter_config(folder), "base_llama");
  load_adapter(*adapted.model, *adapted.report.method, folder);
  const auto file = io::open_safetensors(folder + "/adapter_model.safetensors");
  const auto again = adapted.report.method->in_file({});
  ASSERT_FALSE(again.empty());
  for (const auto& [name, places] : again) EXPECT_TRUE(torch::equal(places, io::read_tensor(*file, name))) << name;
  const std::string layer = "model.layers.0.mlp.down_proj", stored = "base_model.model." + layer;
  const auto numbers = io::read_tensor(*file, stored + ".shira_weight");
  const auto at = io::read_tensor(*file, stored + ".shira_indices").to(at::kLong);
  auto expected = adapted.model->named_parameters()[layer + ".weight"].detach().clone();
  expected.index_put_({at.select(0, 0), at.select(0, 1)}, numbers, /*accumulate=*/true);
  merge_adapters(*adapted.model, *adapted.report.method);
  test::expect_close(adapted.model->named_parameters()[layer + ".weight"], expected, 1e-6, layer);
}

TEST_F(ShiraMask, NumbersAreReadWhereTheyLie) {
  const auto folder = with_places([](const at::Tensor& places) { return places; });
  const auto adapted = load(*read_adapter_config(folder), "base_llama");
  const auto file = io::open_safetensors(folder + "/adapter_model.safetensors");
  const auto readable = adapted.report.method->readable(file);
  EXPECT_EQ(2 * readable->tensors().size(), file->tensors().size()) << "all but the places";
  for (const auto& info : readable->tensors()) EXPECT_TRUE(readable->map(info.name)) << info.name;
}

TEST_F(ShiraMask, ThatDoesNotFitIsRefused) {
  const auto said = [&](const std::function<at::Tensor(const at::Tensor&)>& change) -> std::string {
    const auto folder = with_places(change);
    const auto adapted = load(*read_adapter_config(folder), "base_llama");
    try {
      load_adapter(*adapted.model, *adapted.report.method, folder);
    } catch (const DataError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(said([](const at::Tensor& t) { return t + 1000; }).find("outside of the layer"), std::string::npos);
  EXPECT_NE(said([](const at::Tensor& t) { return t - 1; }).find("outside of the layer"), std::string::npos);
  EXPECT_NE(said([](const at::Tensor& t) { return t.narrow(1, 1, 5).contiguous(); }).find("expected [2, "),
            std::string::npos);
  EXPECT_EQ(said([](const at::Tensor& t) { return t.to(at::kFloat); }), "") << "as PEFT writes it on Windows";
  auto fresh = read_adapter_config(folder_.path());
  EXPECT_THROW(fresh->check_new(), ConfigError);
}

TEST(MakeMethod, RefusesByNameWhatIsNotThere) {
  try {
    make_method("POLY");
    FAIL() << "expected ConfigError";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("'POLY', which is not supported; there are LORA, IA3"), std::string::npos)
        << e.what();
  }
}

at::Tensor logits_of(models::Model& model) {
  models::ModelInput in;
  in.input_ids = (at::arange(14) * 5 % 29 + 3).view({2, 7});
  const torch::NoGradGuard no_grad;
  return model(in).logits;
}

/// Away from ones, which change nothing.
void move(models::Model& model) {
  torch::manual_seed(4);
  for (const auto& slot : adapted_slots(model))
    for (const auto& [name, values] : slot.parameters()) values.detach().add_(torch::randn_like(values) * 0.3);
}

// GPT-2 has biases, and weights that lie transposed.
TEST(Ia3, MergedWeightsAndBiasesComputeWhatTheVectorsDo) {
  auto gpt2 = load(Ia3(), "base_gpt2");
  EXPECT_EQ(gpt2.report.adapted.size(), 4u);  // of 2 layers
  EXPECT_TRUE(gpt2.report.method->fan_in_fan_out);
  gpt2.model->eval();
  const auto before = logits_of(*gpt2.model);
  move(*gpt2.model);
  const auto scaled = logits_of(*gpt2.model);
  EXPECT_GT((scaled - before).abs().max().item<double>(), 1e-2);
  merge_adapters(*gpt2.model, *gpt2.report.method);
  EXPECT_TRUE(nn::adapter_parameters(*gpt2.model).empty());
  test::expect_close(logits_of(*gpt2.model), scaled, 1e-5, "merged");
}

TEST(Ia3, FeedforwardModulesAreTargets) {
  Ia3 method;
  method.target_modules = {"k_proj"};
  method.feedforward_modules = {"down_proj"};
  EXPECT_THROW(load(method, "base_llama"), ConfigError);
  method.feedforward_modules = std::vector<std::string>();  // none, which is not the family's
  const auto llama = load(method, "base_llama");
  EXPECT_NE(adapter_config_json(*llama.report.method).find("\"feedforward_modules\": []"), std::string::npos);
}

TEST(Ia3, ReadsPicklesToo) {
  const std::string folder = kPeft + "llama_ia3/adapter_final";
  auto plain = load(*read_adapter_config(folder), "base_llama");
  load_adapter(*plain.model, *plain.report.method, folder);
  auto pickled = load(*read_adapter_config(folder + "_bin"), "base_llama");
  load_adapter(*pickled.model, *pickled.report.method, folder + "_bin");
  EXPECT_TRUE(torch::equal(logits_of(*plain.model), logits_of(*pickled.model)));
}

/// What a trained run of family J generates.
std::vector<std::vector<std::int64_t>> generated(const std::string& run, const std::string& base, const at::Tensor& ids,
                                                 const at::Tensor& mask, std::int64_t beams) {
  const std::string folder = kPeft + run + "/adapter_final";
  auto adapted = load(*read_adapter_config(folder), base);
  load_adapter(*adapted.model, *adapted.report.method, folder);
  models::GenerationConfig config;
  config.max_new_tokens = 8;
  config.num_beams = beams;
  config.pad_token_id = 0;
  config.eos_token_ids = {adapted.family.kind == models::ModelKind::kCausal ? 2 : 1};
  const auto out = models::generate(*adapted.model, ids, mask, config).sequences.contiguous();
  std::vector<std::vector<std::int64_t>> rows;
  for (std::int64_t r = 0; r < out.size(0); ++r) {
    const auto* p = out.const_data_ptr<std::int64_t>() + r * out.size(1);
    rows.emplace_back(p, p + out.size(1));
  }
  return rows;
}

using Rows = std::vector<std::vector<std::int64_t>>;

// PEFT's generate() of the same folders.
TEST(PromptTuning, GeneratesWhatPeftGenerates) {
  const auto ids = torch::tensor({5, 9, 12, 7}, at::kLong).view({1, 4});
  EXPECT_EQ(generated("llama_prompt", "base_llama", ids, {}, 1), Rows({{5, 9, 12, 7, 90, 81, 40, 7, 86, 62, 21, 53}}));
  EXPECT_EQ(generated("llama_prompt", "base_llama", ids, {}, 3), Rows({{5, 9, 12, 7, 90, 81, 40, 7, 86, 62, 94, 38}}));
  const auto padded = torch::tensor({5, 9, 12, 7, 0, 0, 6, 8}, at::kLong).view({2, 4});  // positions are columns
  EXPECT_EQ(generated("llama_prompt", "base_llama", padded, padded.ne(0).to(at::kLong), 3),
            Rows({{5, 9, 12, 7, 90, 81, 40, 7, 86, 62, 94, 38}, {0, 0, 6, 8, 56, 56, 78, 87, 10, 66, 66, 87}}));
  const auto sources = torch::tensor({5, 9, 12, 7, 1, 6, 8, 1, 0, 0}, at::kLong).view({2, 5});
  EXPECT_EQ(generated("t5_prompt", "base_t5", sources, sources.ne(0).to(at::kLong), 3),
            Rows({{0, 3, 65, 65, 65, 65, 65, 65, 65}, {0, 0, 0, 0, 0, 0, 0, 0, 0}}));
}

TEST(PrefixTuning, GeneratesWhatPeftGenerates) {
  const auto ids = torch::tensor({5, 9, 12, 7, 0, 0, 6, 8}, at::kLong).view({2, 4});
  const auto mask = ids.ne(0).to(at::kLong);
  EXPECT_EQ(generated("llama_prefix", "base_llama", ids, mask, 1),
            Rows({{5, 9, 12, 7, 63, 70, 12, 40, 80, 53, 56, 36}, {0, 0, 6, 8, 73, 41, 77, 90, 70, 54, 36, 79}}));
  EXPECT_EQ(generated("llama_prefix", "base_llama", ids, mask, 3),
            Rows({{5, 9, 12, 7, 62, 56, 70, 36, 5, 4, 5, 5}, {0, 0, 6, 8, 73, 66, 72, 62, 56, 70, 7, 74}}));
  EXPECT_EQ(generated("llama_prefix_projection", "base_llama", ids, mask, 3),
            Rows({{5, 9, 12, 7, 5, 5, 5, 5, 5, 5, 5, 5}, {0, 0, 6, 8, 10, 19, 90, 7, 74, 62, 70, 66}}));
  for (const int beams : {1, 3}) {  // a prefix of keys and values for each query head
    EXPECT_EQ(generated("falcon_prefix", "base_falcon", ids, mask, beams),
              Rows({{5, 9, 12, 7, 7, 68, 68, 68, 68, 68, 68, 68}, {0, 0, 6, 8, 8, 79, 79, 79, 79, 79, 79, 79}}));
  }
}

Loaded load_keys(const json& keys, const std::string& base) {
  return load(*read_peft_keys(keys, "the test"), base);
}

// As in PEFT; the head alone has rows of its own.
TEST(TrainableTokens, OfATableAndTheHeadThatIsTiedToItStayTied) {
  json keys = {
      {"peft_type", "TRAINABLE_TOKENS"}, {"token_indices", {3, 8}}, {"target_modules", {"embed_tokens", "lm_head"}}};
  const auto both = load_keys(keys, "base_tied");
  EXPECT_FALSE(both.report.untied);
  EXPECT_EQ(both.report.adapted, std::vector<std::string>{"model.embed_tokens"});
  keys["target_modules"] = {"lm_head"};
  const auto head = load_keys(keys, "base_tied");
  EXPECT_TRUE(head.report.untied);
  EXPECT_EQ(head.report.adapted, std::vector<std::string>{"lm_head"});
}

// As get_pattern_key() takes them. PEFT sorts them as it saves, and may read other ranks than it trained.
TEST(Lora, OfPatternsThatOverlapTheFirstThatIsGivenCounts) {
  const auto keys = nlohmann::ordered_json::parse(
      R"({"peft_type": "LORA", "rank_pattern": {"q_proj": 2, "layers.0.*": 4}, "alpha_pattern": {"v": 3, "a": 1.5}})");
  const auto given = read_peft_keys(keys, "the test");
  const auto saved = read_peft_keys(nlohmann::ordered_json::parse(adapter_config_json(*given)), "the test");
  for (const auto* method : {given.get(), saved.get()}) {
    const auto& lora = dynamic_cast<const Lora&>(*method);
    EXPECT_EQ(lora.rank_pattern, (std::vector<std::pair<std::string, std::int64_t>>{{"q_proj", 2}, {"layers.0.*", 4}}));
    EXPECT_EQ(lora.alpha_pattern, (std::vector<std::pair<std::string, double>>{{"v", 3}, {"a", 1.5}}));
  }
}

// re.match(rf".*\.{key}$", name), or the name itself.
TEST(FourierFt, PatternsAreMatchedAsInPeft) {
  FourierFt method;
  method.n_frequency = 5;
  method.n_frequency_pattern = {{"q_proj|v_proj", 1}, {R"(layers\.1\.mlp\.up_proj)", 2}, {"o_proj", 3}};
  const std::map<std::string, std::int64_t> expected = {{"model.layers.0.self_attn.q_proj", 1},
                                                        {"model.layers.0.self_attn.v_proj", 5},
                                                        {"model.layers.1.mlp.up_proj", 2},
                                                        {"model.layers.0.mlp.up_proj", 5},
                                                        {"model.layers.0.self_attn.q_proj_b", 1},
                                                        {"o_proj", 3},
                                                        {"model.o_proj", 3},
                                                        {"v_proj", 1}};
  for (const auto& [name, count] : expected)
    EXPECT_EQ(method.added({.name = name, .in = 8, .out = 8})[0].sizes[0], count) << name;
}

TEST(Lora, ARegularExpressionMayNameATiedHead) {
  const auto lora = load_keys({{"peft_type", "LORA"}, {"target_modules", ".*1.*q_proj|lm_head"}}, "base_tied");
  EXPECT_TRUE(lora.report.untied);
  EXPECT_EQ(lora.report.adapted, (std::vector<std::string>{"model.layers.1.self_attn.q_proj", "lm_head"}));
}

// PEFT adapts it, and merges into a head and a table that differ.
TEST(Lora, TheTiedHeadOfAnEncoderDecoderIsRefusedByName) {
  json keys = {{"peft_type", "LORA"}, {"target_modules", {"q", "lm_head"}}};
  try {
    load_keys(keys, "base_t5");
    ADD_FAILURE() << "the head was left out in silence";
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.key, "target_modules");
    EXPECT_NE(std::string(e.what()).find("'lm_head'"), std::string::npos) << e.what();
  }
  keys["exclude_modules"] = {"lm_head"};
  EXPECT_FALSE(load_keys(keys, "base_t5").report.adapted.empty());
}

TEST(TrainableTokens, GenerateWhatPeftGenerates) {
  const auto ids = torch::tensor({5, 9, 12, 7, 0, 0, 6, 8}, at::kLong).view({2, 4});
  EXPECT_EQ(generated("llama_trainable_tokens", "base_llama", ids, ids.ne(0).to(at::kLong), 1),
            Rows({{5, 9, 12, 7, 80, 80, 58, 73, 29, 33, 38, 88}, {0, 0, 6, 8, 46, 83, 87, 87, 87, 87, 30, 30}}));
}

TEST(AdaLora, GeneratesWhatPeftGenerates) {
  const auto ids = torch::tensor({5, 9, 12, 7, 0, 0, 6, 8}, at::kLong).view({2, 4});
  EXPECT_EQ(generated("llama_adalora", "base_llama", ids, ids.ne(0).to(at::kLong), 1),
            Rows({{5, 9, 12, 7, 85, 80, 50, 36, 80, 53, 36, 79}, {0, 0, 6, 8, 46, 83, 94, 26, 81, 38, 19, 73}}));
}

TEST(Alora, GeneratesWhatPeftGenerates) {
  const auto ids = torch::tensor({5, 53, 12, 7, 0, 0, 6, 8, 53, 9, 53, 40}, at::kLong).view({3, 4});
  EXPECT_EQ(generated("llama_alora", "base_llama", ids, ids.ne(0).to(at::kLong), 1),
            Rows({{5, 53, 12, 7, 5, 5, 5, 5, 38, 51, 71, 58},
                  {0, 0, 6, 8, 46, 83, 87, 87, 87, 87, 30, 30},
                  {53, 9, 53, 40, 7, 5, 84, 63, 62, 56, 73, 4}}));
}

TEST(Ia3, GeneratesWhatPeftGenerates) {
  const auto ids = torch::tensor({5, 9, 12, 7, 0, 0, 6, 8}, at::kLong).view({2, 4});
  EXPECT_EQ(generated("llama_ia3", "base_llama", ids, ids.ne(0).to(at::kLong), 1),
            Rows({{5, 9, 12, 7, 5, 5, 5, 5, 5, 5, 5, 5}, {0, 0, 6, 8, 46, 83, 87, 87, 87, 87, 30, 30}}));
}

class BlockDropout : public testing::TestWithParam<json> {};

TEST_P(BlockDropout, ReplacesRotationsInTrainingOnly) {
  auto keys = GetParam();
  keys["target_modules"] = {"q_proj"};
  auto llama = load(*read_peft_keys(keys, "the test"), "base_llama");
  move(*llama.model);
  llama.model->eval();
  const auto evaluated = logits_of(*llama.model);
  EXPECT_TRUE(torch::equal(logits_of(*llama.model), evaluated));
  llama.model->train();
  const auto once = logits_of(*llama.model), again = logits_of(*llama.model);
  EXPECT_GT((once - evaluated).abs().max().item<double>(), 1e-4);
  EXPECT_GT((once - again).abs().max().item<double>(), 1e-4) << "drawn anew";
}

INSTANTIATE_TEST_SUITE_P(Methods, BlockDropout,
                         testing::Values(json{{"peft_type", "OFT"}, {"oft_block_size", 4}, {"module_dropout", 0.5}},
                                         json{{"peft_type", "BOFT"}, {"boft_block_size", 4}, {"boft_dropout", 0.5}}));

TEST(DroppedBlocks, ReplaceSoManyBlocksByTheIdentity) {
  const auto turns = torch::rand({6, 3, 3});
  const auto dropped = with_dropped_blocks(turns, 0.4);
  int replaced = 0;
  for (int i = 0; i < 6; ++i) {
    const bool is_identity = torch::equal(dropped[i], torch::eye(3));
    EXPECT_TRUE(is_identity || torch::equal(dropped[i], turns[i]));
    replaced += is_identity;
  }
  EXPECT_EQ(replaced, 2);
  EXPECT_TRUE(torch::equal(with_dropped_blocks(turns.slice(0, 0, 1), 0.9), turns.slice(0, 0, 1)));
  const auto factors = torch::rand({2, 6, 3, 3});
  const auto same = with_dropped_factor(factors, 0.5).eq(factors).flatten(1).all(1);
  EXPECT_EQ(same.sum().item<int>(), 1) << "one factor is left alone";
}

PromptTuning prompt_of(std::int64_t tokens, const std::string& init) {
  PromptTuning method;
  method.num_virtual_tokens = tokens;
  method.prompt_tuning_init = init;
  return method;
}

TEST(PromptTuning, BeginsWithRowsOfTheWordEmbedding) {
  auto text = prompt_of(3, "TEXT");
  text.prompt_tuning_init_text = "two tokens";
  text.init_token_ids = {7, 9};
  auto t5 = load(text, "base_t5");
  initialise_from_weights(*t5.model, *t5.report.method, 7);
  const auto parameters = t5.model->named_parameters();
  const auto prompt = parameters["prompt_encoder.default.embedding.weight"].detach();
  const auto ids = torch::tensor({7, 9, 7, 9, 7, 9}, at::kLong);  // for encoder and decoder
  EXPECT_TRUE(torch::equal(prompt, parameters["shared.weight"].detach().index_select(0, ids)));
  auto sampled = load(prompt_of(4, "SAMPLE_VOCAB"), "base_llama");
  initialise_from_weights(*sampled.model, *sampled.report.method, 7);
  const auto table = sampled.model->named_parameters()["model.embed_tokens.weight"].detach();
  const auto rows = sampled.model->named_parameters()["prompt_encoder.default.embedding.weight"].detach();
  EXPECT_TRUE((rows.unsqueeze(1) == table).all(2).any(1).all().item<bool>());
}

TEST(PromptTuning, RefusesPackedRowsAndMerging) {
  auto llama = load(prompt_of(2, "RANDOM"), "base_llama");
  models::ModelInput in;
  in.input_ids = torch::ones({1, 4}, at::kLong);
  in.row_ids = torch::zeros({1, 4}, at::kLong);
  EXPECT_THROW((*llama.model)(in), DataError);
  EXPECT_THROW(merge_adapters(*llama.model, *llama.report.method), ConfigError);
}

TEST(AdapterConfig, WritesWholeNumbersAsIntegersAndLargeOnesAsTheyAre) {
  for (const auto& [given, written] : {std::pair{"16", "16"}, {"16.5", "16.5"}, {"1e+308", "1e+308"}}) {
    const auto method = read_peft_keys(
        nlohmann::json::parse(std::string(R"({"peft_type": "LORA", "lora_alpha": )") + given + "}"), "the test");
    EXPECT_EQ(nlohmann::json::parse(adapter_config_json(*method))["lora_alpha"].dump(), written);
  }
}

}  // namespace
}  // namespace tessera::peft
