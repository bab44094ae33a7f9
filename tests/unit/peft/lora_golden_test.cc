// LoRA against peft: first gradients, merged weights, and what is written.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "peft/adapter_files.h"
#include "peft/merge.h"
#include "peft/methods/lora.h"
#include "support/compare.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "unit/peft/with_adapter.h"

namespace tessera::peft {
namespace {

models::ModelInput batch(int step) {
  const auto source = io::open_safetensors(kFolder + "base_t5/batches.safetensors");
  const auto read = [&](const char* key) {
    return io::read_tensor(*source, "step" + std::to_string(step) + "." + key);
  };
  models::ModelInput in;
  in.input_ids = read("input_ids");
  in.attention_mask = read("attention_mask");
  in.labels = read("labels");
  return in;
}

TEST(LoraGolden, FirstGradientsEqualPefts) {
  auto t5 = load(read_lora(kFolder + "t5_lora_qv/adapter_init"), "base_t5");
  load_adapter(*t5.model, *t5.report.method, kFolder + "t5_lora_qv/adapter_init");
  EXPECT_EQ(t5.report.trainable, 5376);
  EXPECT_EQ(t5.report.total, 34336);
  auto in = batch(0);
  in.want_logits = false;
  auto out = (*t5.model)(in);
  EXPECT_NEAR(out.loss.item<double>(), 5.148612022399902, 5e-5);
  out.loss.backward();
  const auto expected = io::open_safetensors(kFolder + "t5_lora_qv/step0_grads.safetensors");
  std::size_t compared = 0;
  for (const auto& item : t5.model->named_parameters()) {
    if (!item.value().requires_grad()) {
      EXPECT_FALSE(item.value().grad().defined()) << item.key();
      continue;
    }
    const auto name = "grad.base_model.model." + item.key();
    ASSERT_TRUE(expected->find(name)) << name;
    const auto theirs = io::read_tensor(*expected, name);
    if (theirs.abs().max().item<double>() > 0) test::expect_close(item.value().grad(), theirs, 1e-4, name);
    ++compared;
  }
  EXPECT_EQ(compared, expected->tensors().size());
}

TEST(LoraGolden, MergedWeightsAndLogitsEqualPefts) {
  auto t5 = load(read_lora(kFolder + "t5_lora_qv/adapter_final"), "base_t5");
  load_adapter(*t5.model, *t5.report.method, kFolder + "t5_lora_qv/adapter_final");
  t5.model->eval();
  const auto logits = io::read_tensor(*io::open_safetensors(kFolder + "t5_lora_qv/final_logits.safetensors"),
                                      "logits_adapter_final_batch0");
  torch::NoGradGuard no_grad;
  test::expect_close((*t5.model)(batch(0)).logits, logits, 1e-5, "adapter logits");
  merge_adapters(*t5.model, *t5.report.method);
  const auto merged = io::open_weights(kFolder + "t5_lora_qv/merged");
  for (const auto& item : t5.model->named_parameters()) {
    test::expect_close(item.value(), io::read_tensor(*merged, item.key()), 1e-6, item.key());
  }
  test::expect_close((*t5.model)(batch(0)).logits, logits, 1e-4, "merged logits");
}

TEST(Lora, ConfigSurvivesWritingAndReading) {
  const auto config = read_lora(kFolder + "t5_lora_qv/adapter_init");
  const auto text = adapter_config_json(config);
  EXPECT_NE(text.find("\"target_modules\": [\n    \"q\",\n    \"v\"\n  ]"), std::string::npos);
  EXPECT_NE(text.find("\"lora_alpha\": 32,"), std::string::npos);
  EXPECT_NE(text.find("\"lora_dropout\": 0.0,"), std::string::npos);
  EXPECT_NE(text.find("\"task_type\": \"SEQ_2_SEQ_LM\""), std::string::npos);
}

TEST(Lora, NewAdapterChangesNothingUntilItIsTrained) {
  Lora config;
  auto plain = models::build_model(kFolder + "base_t5", nullptr);
  models::load_weights(*plain, *io::open_weights(kFolder + "base_t5"));
  auto adapted = load(config, "base_t5");
  EXPECT_EQ(adapted.report.adapted.size(), 12u);
  torch::NoGradGuard no_grad;
  test::expect_close((*adapted.model)(batch(0)).logits, (*plain)(batch(0)).logits, 1e-6, "logits");
}

TEST(Lora, TargetsByRegexLayerAndPattern) {
  Lora config;
  config.target_regex = ".*decoder.*EncDecAttention\\.[kv]";
  EXPECT_EQ(load(config, "base_t5").report.adapted.size(), 4u);
  config.target_regex = "all-linear";
  const auto all = load(config, "base_t5");
  EXPECT_EQ(all.report.adapted.size(), 32u);  // 2 x 6 encoder, 2 x 10 decoder; the head is tied
  config.target_regex.clear();
  config.target_modules = {"q", "wo"};
  config.layers_to_transform = {1};
  config.rank_pattern = {{"wo", 3}};
  auto some = load(config, "base_t5");
  EXPECT_EQ(some.report.adapted.size(), 5u);
  for (const auto& item : some.model->named_parameters()) {
    if (item.key().find("wo.lora_A") != std::string::npos) {
      EXPECT_EQ(item.value().size(0), 3);
    }
  }
}

TEST(Lora, TargetThatMatchesNothingNamesWhatThereIs) {
  Lora config;
  config.target_modules = {"q_proj"};
  try {
    load(config, "base_t5");
    FAIL() << "expected ConfigError";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("shared, q, k, v, o, relative_attention_bias, wi, wo"), std::string::npos)
        << e.what();
  }
}

TEST(Lora, TrainableLineIsPefts) {
  AdapterReport report;
  report.trainable = 884736;
  report.total = 223788288;
  EXPECT_EQ(report.trainable_line(), "trainable params: 884,736 || all params: 223,788,288 || trainable%: 0.3953");
}

}  // namespace
}  // namespace tessera::peft
