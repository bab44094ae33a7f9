// Every method: its configuration as PEFT writes it, and what it makes of a layer.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "peft/adapter_files.h"
#include "peft/ia3.h"
#include "peft/merge.h"
#include "support/compare.h"
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

INSTANTIATE_TEST_SUITE_P(Goldens, MethodConfig,
                         testing::Values("B_train/t5_lora_qv", "B_train/t5_layers_patterns", "B_train/llama_dora",
                                         "J_peft/llama_ia3", "J_peft/bert_ia3_cls"));

TEST(MakeMethod, RefusesByNameWhatIsNotThere) {
  try {
    make_method("BOFT");
    FAIL() << "expected ConfigError";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("'BOFT', which is not supported; there are LORA, IA3"), std::string::npos)
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

}  // namespace
}  // namespace tessera::peft
