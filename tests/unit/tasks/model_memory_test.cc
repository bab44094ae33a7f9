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

#include "base/cpu_level.h"
#include "estimate/activations.h"
#include "estimate/model_tensors.h"
#include "models/model.h"
#include "support/temp_folder.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/nn/block.h"
#include "unit/tasks/adapted_llama.h"
#include "unit/tasks/tensor_bytes.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;

constexpr std::int64_t kVocabulary = 96, kHidden = 64;

json decoder(const std::string& type, const std::string& name, json more) {
  json config = {{"model_type", type},       {"architectures", {name + "ForCausalLM"}},
                 {"hidden_size", kHidden},   {"intermediate_size", 176},
                 {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"num_hidden_layers", 4}};
  config.update(more);
  return config;
}

json t5(json more) {
  json config = {{"model_type", "t5"},
                 {"architectures", {"T5ForConditionalGeneration"}},
                 {"d_model", kHidden},
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
                 {"hidden_size", kHidden},
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
  /// Hidden sizes a token that what stands before and behind the blocks keeps, which the formula leaves out: norms,
  /// the gradient that a language model's loss makes in forward; and which experts a token chose. An encoder keeps 0.2.
  double ends_kept = 2.5;
  double ends_kept_frozen = ends_kept;  // where matrices there do not train
};

json gpt(const std::string& type, const std::string& name, json more) {
  json config = {{"model_type", type}, {"architectures", {name}}, {"n_embd", kHidden}, {"n_head", 4},
                 {"n_layer", 4},       {"n_positions", 520}};
  config.update(more);
  return config;
}

const json kDistances = {{"relative_attention", true},
                         {"pos_att_type", {"c2p", "p2c"}},
                         {"position_biased_input", false},
                         {"type_vocab_size", 0}};

json with(json keys, const json& more) {
  keys.update(more);
  return keys;
}

const std::vector<Family> kFamilies = {
    {"llama", decoder("llama", "Llama", json::object())},
    {"llama_wide_heads", decoder("llama", "Llama", {{"head_dim", 32}})},
    {"mistral", decoder("mistral", "Mistral", {{"sliding_window", 128}})},
    {"mixtral", decoder("mixtral", "Mixtral", {{"num_local_experts", 4}})},
    {"mixtral_one", decoder("mixtral", "Mixtral", {{"num_local_experts", 4}, {"num_experts_per_tok", 1}})},
    {"mixtral_three", decoder("mixtral", "Mixtral", {{"num_local_experts", 6}, {"num_experts_per_tok", 3}})},
    {"qwen2", decoder("qwen2", "Qwen2", json::object())},
    {"qwen3", decoder("qwen3", "Qwen3", {{"head_dim", 16}})},
    {"qwen3_moe",
     decoder("qwen3_moe", "Qwen3Moe",
             {{"head_dim", 16}, {"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 96}}),
     3.0},
    {"qwen2_moe", decoder("qwen2_moe", "Qwen2Moe",
                          {{"num_experts", 4},
                           {"num_experts_per_tok", 2},
                           {"moe_intermediate_size", 96},
                           {"shared_expert_intermediate_size", 192},
                           {"mlp_only_layers", {1}}})},
    {"granite", decoder("granite", "Granite", {{"residual_multiplier", 0.5}, {"embedding_multiplier", 2.0}})},
    {"olmo2", decoder("olmo2", "Olmo2", {{"pad_token_id", 0}})},
    {"starcoder2", decoder("starcoder2", "Starcoder2", {{"residual_dropout", 0.1}})},
    {"smollm3", decoder("smollm3", "SmolLM3", {{"pad_token_id", 0}})},
    {"phi3", decoder("phi3", "Phi3", {{"pad_token_id", 0}})},
    {"phi3_dropout", decoder("phi3", "Phi3", {{"pad_token_id", 0}, {"resid_pdrop", 0.1}})},
    {"gemma", decoder("gemma", "Gemma", {{"head_dim", 16}})},
    {"gemma2", decoder("gemma2", "Gemma2", {{"head_dim", 16}})},
    {"gemma3_text", decoder("gemma3_text", "Gemma3", {{"head_dim", 16}, {"sliding_window", 128}})},
    {"gpt2", gpt("gpt2", "GPT2LMHeadModel", json::object())},
    {"gpt2_without_dropout",
     gpt("gpt2", "GPT2LMHeadModel", {{"embd_pdrop", 0.0}, {"resid_pdrop", 0.0}, {"attn_pdrop", 0.0}})},
    {"gptj", gpt("gptj", "GPTJForCausalLM", {{"rotary_dim", 8}}), 3},
    {"gpt_neox", decoder("gpt_neox", "GPTNeoX", {{"intermediate_size", 256}})},
    {"gpt_neox_sequential",
     decoder("gpt_neox", "GPTNeoX", {{"intermediate_size", 256}, {"use_parallel_residual", false}})},
    {"opt", decoder("opt", "OPT", {{"ffn_dim", 256}, {"max_position_embeddings", 520}})},
    {"opt_norm_after",
     decoder("opt", "OPT",
             {{"ffn_dim", 256},
              {"max_position_embeddings", 520},
              {"word_embed_proj_dim", 32},
              {"do_layer_norm_before", false}}),
     2.5, 1.1},
    {"bloom", gpt("bloom", "BloomForCausalLM", {{"hidden_size", kHidden}}), 3.7},
    {"bloom_residual_after",
     gpt("bloom", "BloomForCausalLM", {{"hidden_size", kHidden}, {"apply_residual_connection_post_layernorm", true}}),
     3.7},
    {"gpt_bigcode", gpt("gpt_bigcode", "GPTBigCodeForCausalLM", json::object())},
    {"gpt_bigcode_of_many_heads", gpt("gpt_bigcode", "GPTBigCodeForCausalLM", {{"multi_query", false}})},
    {"gpt_neo",
     decoder(
         "gpt_neo", "GPTNeo",
         {{"num_layers", 4}, {"num_heads", 4}, {"attention_types", {{{"global", "local"}, 2}}}, {"window_size", 128}})},
    {"phi", decoder("phi", "Phi", {{"pad_token_id", 0}})},
    {"stablelm", decoder("stablelm", "StableLm", {{"pad_token_id", 0}})},
    {"stablelm_parallel", decoder("stablelm", "StableLm", {{"use_parallel_residual", true}, {"qk_layernorm", true}})},
    {"olmo", decoder("olmo", "Olmo", {{"pad_token_id", 0}})},
    {"olmoe", decoder("olmoe", "Olmoe", {{"num_experts", 4}, {"num_experts_per_tok", 2}, {"pad_token_id", 0}})},
    {"glm", decoder("glm", "Glm", {{"head_dim", 16}, {"pad_token_id", 0}})},
    {"glm4", decoder("glm4", "Glm4", {{"head_dim", 16}, {"pad_token_id", 0}})},
    {"falcon", decoder("falcon", "Falcon", json::object())},
    {"falcon_new", decoder("falcon", "Falcon", {{"new_decoder_architecture", true}, {"num_kv_heads", 2}})},
    {"falcon_sequential",
     decoder("falcon", "Falcon", {{"parallel_attn", false}, {"alibi", true}, {"multi_query", false}})},
    {"t5", t5(json::object()), 2.3},
    {"t5_gated", t5({{"feed_forward_proj", "gated-gelu"}, {"tie_word_embeddings", false}}), 2.3},
    {"t5_narrow_heads", t5({{"d_kv", 8}, {"num_heads", 3}}), 2.3},
    {"bert", bert("bert", "BertForSequenceClassification", json::object()), 1.4},
    {"bert_masked", bert("bert", "BertForMaskedLM", json::object()), 6, 5},
    {"roberta", bert("roberta", "RobertaForSequenceClassification", {{"pad_token_id", 1}}), 1.4},
    {"distilbert",
     bert("distilbert", "DistilBertForSequenceClassification",
          {{"dim", kHidden}, {"hidden_dim", 256}, {"n_heads", 4}, {"n_layers", 4}}),
     1.4},
    {"electra", bert("electra", "ElectraForSequenceClassification", {{"embedding_size", 32}}), 1.4},
    {"deberta", bert("deberta", "DebertaForSequenceClassification", with(kDistances, {{"max_relative_positions", 64}})),
     1.4},
    {"deberta_v3",
     bert("deberta-v2", "DebertaV2ForSequenceClassification",
          with(kDistances, {{"position_buckets", 64}, {"share_att_key", true}, {"norm_rel_ebd", "layer_norm"}})),
     1.4}};

struct StepBytes {
  std::int64_t forward, kept, backward;  // the peak of forward, what is there at its end, the peak of backward
};

/// Which of the parameters train.
enum class Trains { kAll, kAllButMatrices };

StepBytes measure(const std::string& folder, const estimate::BatchShape& batch, at::ScalarType dtype, Trains trains) {
  models::ModelConfig family;
  const auto model = models::build_model(folder, &family);
  models::init_weights(*model, 5);
  model->to(dtype);
  model->train();
  if (batch.checkpointing > 0)
    nn::set_checkpointing(*model,
                          fsdp::every_nth(batch.checkpointing, fsdp::wrap_classes({family.no_split_classes.front()})));
  for (const auto& parameter : model->parameters())
    parameter.set_requires_grad(trains == Trains::kAll || parameter.dim() == 1);
  const auto step = [&](std::int64_t rows) {
    models::ModelInput in;
    in.want_logits = false;
    in.input_ids = at::randint(2, kVocabulary, {rows, batch.of_encoder().length}, at::kLong);
    in.labels = family.kind == models::ModelKind::kSequenceClassification ? at::randint(0, 3, {rows}, at::kLong)
                : family.kind == models::ModelKind::kSeq2Seq
                    ? at::randint(2, kVocabulary, {rows, batch.length}, at::kLong)
                    : in.input_ids;
    in.row_ids = at::arange(rows);
    TensorBytes counted;
    const auto out = (*model)(in);
    StepBytes bytes{counted.peak(), counted.now(), 0};
    counted.reset_peak();
    out.loss.backward();
    bytes.backward = counted.peak();
    return bytes;
  };
  step(1);  // makes what is made once and stays: tables of positions, gradients
  return step(batch.rows);
}

void PrintTo(const Family& family, std::ostream* out) {
  *out << family.name;
}

class ModelMemory : public testing::TestWithParam<Family> {};

/// near_kept: besides what matters less the larger a model is, statistics of norms in float32 and experts' indices.
void expect_formula(const Family& family, at::ScalarType dtype, double near_kept, double near_peak,
                    Trains trains = Trains::kAll, std::vector<std::int64_t> recompute_every = {}) {
  const test::TempFolder temporary("model_memory");
  auto config = family.config;
  config["vocab_size"] = kVocabulary;
  config["torch_dtype"] = dtype == at::kFloat ? "float32" : "bfloat16";
  std::ofstream(temporary.path() + "/config.json") << config;
  const auto tensors = estimate::read_model_tensors(temporary.path());
  const auto shape = estimate::activation_shape(tensors), of_encoder = estimate::encoder_shape(tensors);
  estimate::AdapterActivations adapters, encoder_adapters;
  if (trains != Trains::kAll) {
    const auto none = [](const auto&) { return estimate::AdapterBytes{}; };
    adapters = estimate::adapter_activations(tensors, none);
    encoder_adapters = estimate::encoder_adapter_activations(tensors, none);
  }
  const auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  const bool widens = dtype != at::kFloat && !multiplies_bfloat16();
  const bool tiles = dtype == at::kFloat && !multiplies_float32();
  const auto products = widens  ? estimate::Products::kWidened
                        : tiles ? estimate::Products::kTiles
                                : estimate::Products::kLibrary;
  std::vector<estimate::BatchShape> batches = {{8, 256}, {1, 512}, {16, 64}};
  if (of_encoder.blocks > 0)
    batches = {{8, 256},
               {1, 512},
               {.rows = 8, .length = 32, .encoder_length = 256},
               {.rows = 8, .length = 256, .encoder_length = 32}};
  if (!recompute_every.empty()) {
    batches.clear();
    for (const auto n : recompute_every) batches.push_back({.rows = 8, .length = 256, .checkpointing = n});
  }
  for (const auto& batch : batches) {
    const auto measured = measure(temporary.path(), batch, dtype, trains);
    const auto formula = estimate::activation_bytes(shape, adapters, batch, bytes, products);
    estimate::ActivationBytes encoder;
    if (of_encoder.blocks > 0)
      encoder = estimate::activation_bytes(of_encoder, encoder_adapters, batch.of_encoder(), bytes, products);
    const auto kept = static_cast<double>(formula.kept + encoder.kept);
    const auto peak = static_cast<double>(std::max(
        formula.kept + encoder.kept + std::max(formula.working, formula.loss), encoder.kept + encoder.working));
    const auto text = fmt::format("{} rows of {} tokens ({} of the encoder), every {}th block computed again",
                                  batch.rows, batch.length, batch.of_encoder().length, batch.checkpointing);
    const double hidden = static_cast<double>(batch.tokens() * kHidden * bytes);
    const auto sizes = trains == Trains::kAll ? family.ends_kept : family.ends_kept_frozen;
    const auto ends =
        sizes * hidden +
        (of_encoder.blocks > 0 ? 0.2 * static_cast<double>(batch.of_encoder().tokens() * kHidden * bytes) : 0);
    const auto most = static_cast<double>(std::max(measured.forward, measured.backward));
    if (batch.checkpointing > 0) {  // less at the ends; not all that a block keeps is there while its backward works
      EXPECT_NEAR(static_cast<double>(measured.kept) - ends, kept, near_kept * kept + hidden) << text;
      EXPECT_GT(peak, (1 - near_peak) * most) << text;
      EXPECT_LT(peak, most + 12 * hidden) << text;
      continue;
    }
    EXPECT_NEAR(static_cast<double>(measured.kept) - ends, kept, near_kept * kept) << text;
    if (trains != Trains::kAll) continue;  // less is at work where no weight's gradient is made
    EXPECT_NEAR(most, peak, near_peak * peak) << text;
  }
}

TEST_P(ModelMemory, OfAStepIsTheFormulas) {
  expect_formula(GetParam(), at::kFloat, 0.02, 0.24);
}

TEST_P(ModelMemory, OfAStepIn16BitsIsTheFormulas) {
  expect_formula(GetParam(), at::kBFloat16, 0.06, 0.3);  // attention widens some rows, too
}

TEST_P(ModelMemory, OfAStepThatComputesBlocksAgainIsTheFormulas) {
  expect_formula(GetParam(), at::kFloat, 0.15, 0.03, Trains::kAll, {1, 2, 3});
}

TEST_P(ModelMemory, WhatMatricesReadIsNotKeptWhereTheyAreFrozen) {
  if (std::string(GetParam().name) == "olmo") GTEST_SKIP() << "it has matrices alone";
  expect_formula(GetParam(), at::kFloat, 0.02, 0, Trains::kAllButMatrices);
}

TEST(RecomputedBlocks, AreTheFirstOfEverySoMany) {
  for (const std::int64_t every : {0, 1, 2}) {
    AssembleOptions options{.model_folder = kLlama, .recompute_every = every};
    const auto model = assemble(options, comm::make_solo());
    std::vector<bool> again;
    for (const auto& item : model.model->named_modules())
      if (const auto* block = dynamic_cast<const nn::HookedModule*>(item.value().get()))
        if (block->class_name() == "LlamaDecoderLayer") again.push_back(block->checkpointing());
    EXPECT_EQ(again, (std::vector<bool>{every > 0, every == 1})) << every;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ModelMemory, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::tasks
