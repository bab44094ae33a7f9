// What a step holds of a model's activations, of every kind of family: bytes of tensors that are counted one by one,
// beside the formula (estimate/activations.h).
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "estimate/activations.h"
#include "estimate/model_tensors.h"
#include "models/model.h"
#include "support/temp_folder.h"
#include "unit/tasks/tensor_bytes.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;

constexpr std::int64_t kVocabulary = 96;

json decoder(const std::string& type, const std::string& name, json more) {
  json config = {{"model_type", type},       {"architectures", {name + "ForCausalLM"}},
                 {"hidden_size", 64},        {"intermediate_size", 176},
                 {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"num_hidden_layers", 4}};
  config.update(more);
  return config;
}

json t5(json more) {
  json config = {{"model_type", "t5"},
                 {"architectures", {"T5ForConditionalGeneration"}},
                 {"d_model", 64},
                 {"d_ff", 256},
                 {"d_kv", 16},
                 {"num_heads", 4},
                 {"num_layers", 3},
                 {"num_decoder_layers", 3},
                 {"feed_forward_proj", "relu"},
                 {"tie_word_embeddings", true},
                 {"decoder_start_token_id", 0},
                 {"pad_token_id", 0}};
  config.update(more);
  return config;
}

json bert(const std::string& type, const std::string& name, json more) {
  json config = {{"model_type", type},
                 {"architectures", {name}},
                 {"hidden_size", 64},
                 {"intermediate_size", 256},
                 {"num_attention_heads", 4},
                 {"num_hidden_layers", 4},
                 {"max_position_embeddings", 520},
                 {"type_vocab_size", 2},
                 {"num_labels", 3},
                 {"pad_token_id", 0}};
  config.update(more);
  return config;
}

struct Family {
  const char* name;
  json config;
};

const std::vector<Family> kFamilies = {
    {"llama", decoder("llama", "Llama", json::object())},
    {"t5", t5(json::object())},
    {"t5_gated", t5({{"feed_forward_proj", "gated-gelu"}, {"tie_word_embeddings", false}})},
    {"t5_narrow_heads", t5({{"d_kv", 8}, {"num_heads", 3}})},
    {"bert", bert("bert", "BertForSequenceClassification", json::object())},
    {"bert_masked", bert("bert", "BertForMaskedLM", json::object())},
    {"roberta", bert("roberta", "RobertaForSequenceClassification", {{"pad_token_id", 1}})}};

struct StepBytes {
  std::int64_t forward, kept, backward;  // the peak of forward, what is there at its end, the peak of backward
};

StepBytes measure(const std::string& folder, const estimate::BatchShape& batch) {
  models::ModelConfig family;
  const auto model = models::build_model(folder, &family);
  models::init_weights(*model, 5);
  model->train();
  models::ModelInput in;
  in.want_logits = false;
  in.input_ids = at::randint(2, kVocabulary, {batch.rows, batch.length}, at::kLong);
  in.labels = family.kind == models::ModelKind::kSequenceClassification ? at::randint(0, 3, {batch.rows}, at::kLong)
                                                                        : in.input_ids;
  in.row_ids = at::arange(batch.rows);
  for (const bool counts : {false, true}) {  // what is made once and stays
    TensorBytes counted;
    const auto out = (*model)(in);
    StepBytes bytes{counted.peak(), counted.now(), 0};
    counted.reset_peak();
    out.loss.backward();
    bytes.backward = counted.peak();
    if (counts) return bytes;
  }
  return {};
}

void PrintTo(const Family& family, std::ostream* out) {
  *out << family.name;
}

class ModelMemory : public testing::TestWithParam<Family> {};

TEST_P(ModelMemory, OfAStepIsTheFormulas) {
  const test::TempFolder temporary("model_memory");
  auto config = GetParam().config;
  config["vocab_size"] = kVocabulary;
  config["torch_dtype"] = "float32";
  std::ofstream(temporary.path() + "/config.json") << config;
  const auto shape = estimate::activation_shape(estimate::read_model_tensors(temporary.path()));
  for (const estimate::BatchShape batch : {estimate::BatchShape{8, 256}, {1, 512}, {16, 64}}) {
    const auto measured = measure(temporary.path(), batch);
    const auto formula = estimate::activation_bytes(shape, {}, batch, 4);
    const auto kept = static_cast<double>(formula.kept);
    const auto peak = static_cast<double>(formula.kept + std::max(formula.working, formula.loss));
    const auto text = fmt::format("{} rows of {} tokens", batch.rows, batch.length);
    EXPECT_NEAR(static_cast<double>(measured.kept), kept, 0.12 * kept) << text;  // heads of the models are not in it
    EXPECT_NEAR(static_cast<double>(std::max(measured.forward, measured.backward)), peak, 0.15 * peak) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ModelMemory, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::tasks
