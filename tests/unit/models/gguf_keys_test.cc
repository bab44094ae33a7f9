// What a GGUF file cannot say of a model, or its readers cannot compute, is refused by name.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "families/families.h"
#include "models/gguf_bert.h"
#include "models/gguf_keys.h"
#include "models/gguf_names.h"
#include "models/gguf_t5.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

using nlohmann::json;

/// The refusal, or the note; "": neither.
std::string said(const std::string& model_type, const json& more, GgufExport* made = nullptr) {
  json config = {{"model_type", model_type},
                 {"vocab_size", 32},
                 {"hidden_size", 32},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 4},
                 {"num_hidden_layers", 4},
                 {"max_position_embeddings", 128},
                 {"tie_word_embeddings", true},
                 {"torch_dtype", "float32"},
                 {"pad_token_id", 0}};
  if (model_type.starts_with("glm")) config["head_dim"] = 8;
  if (model_type.starts_with("gemma")) config.update({{"head_dim", 8}, {"query_pre_attn_scalar", 8}});
  if (model_type == "falcon" || model_type == "bloom") config["n_head"] = 4;
  config.update(more);
  const auto parsed = families::parse_config(config, "config.json");
  try {
    const auto* t5 = std::get_if<families::T5Config>(&parsed);
    const auto* bert = std::get_if<families::BertConfig>(&parsed);
    const auto* decoder = std::get_if<families::DecoderConfig>(&parsed);
    auto out = t5     ? gguf_t5_keys(*t5, config)
               : bert ? gguf_bert_keys(*bert, config)
                      : gguf_keys(gguf_family(*decoder), *decoder, config);
    if (made) *made = out;
    return out.note;
  } catch (const ConfigError& e) {
    return e.what();
  }
}

void expect_says(const std::string& model_type, const json& more, const std::string& what) {
  const std::string message = said(model_type, more);
  EXPECT_NE(message.find(what), std::string::npos) << model_type << ' ' << more << ": " << message;
}

TEST(GgufKeys, UsualModelsOfEveryFamilyAreWritten) {
  for (const std::string& model_type : gguf_model_types()) {
    json more = json::object();
    if (model_type == "qwen3_moe") more["norm_topk_prob"] = true;
    if (model_type == "t5") more["tie_word_embeddings"] = false;
    EXPECT_EQ(said(model_type, more), "") << model_type;
  }
}

TEST(GgufKeys, ReadersTakeT5sUsualActivationsAndDistancesAndDoNotScaleItsHead) {
  expect_says("t5", {{"feed_forward_proj", "gated-silu"}},
              "no key for this feed_forward_proj: readers compute gated-gelu");
  expect_says("t5", {{"feed_forward_proj", "gelu"}}, "this feed_forward_proj: readers compute relu");
  expect_says("mt5", {{"relative_attention_max_distance", 64}}, "relative_attention_max_distance 64: readers take 128");
  expect_says("t5", {{"hidden_size", 64}}, "drawing needs 8 times the temperature");
  EXPECT_EQ(said("mt5", {{"tie_word_embeddings", false}}), "");
}

TEST(GgufKeys, ReadersOfABertTakeGeluAndAbsolutePositions) {
  expect_says("bert", {{"hidden_act", "relu"}}, "this hidden_act: readers compute gelu");
  expect_says("bert", {{"position_embedding_type", "relative_key"}}, "position_embedding_type");
  // A RoBERTa's first rows of positions are those of padding.
  GgufExport made;
  EXPECT_EQ(said("roberta", {{"pad_token_id", 1}}, &made), "");
  const std::pair<std::string, io::GgufItem> longest{"bert.context_length", std::uint32_t{126}};
  EXPECT_NE(std::find(made.metadata.begin(), made.metadata.end(), longest), made.metadata.end());
  const json classifier = {{"architectures", {"BertForSequenceClassification"}},
                           {"id2label", {{"1", "good"}, {"0", "bad"}}}};
  EXPECT_EQ(said("bert", classifier, &made), "");
  const std::pair<std::string, io::GgufItem> labels{"bert.classifier.output_labels",
                                                    std::vector<std::string>{"bad", "good"}};
  EXPECT_NE(std::find(made.metadata.begin(), made.metadata.end(), labels), made.metadata.end());
}

TEST(GgufKeys, ActivationsAndBiasesAreTheReaders) {
  expect_says("llama", {{"hidden_act", "gelu"}}, "no key for the activation of this llama: readers compute silu");
  expect_says("gpt_neox", {{"hidden_act", "relu"}}, "the activation of this gpt_neox: readers compute gelu");
  expect_says("olmo2", {{"attention_bias", true}}, "an olmo2 with biases in attention's output: readers have none");
  expect_says("smollm3", {{"mlp_bias", true}}, "a smollm3 with biases in the MLP");
  expect_says("starcoder2", {{"use_bias", false}}, "a starcoder2 without biases in queries, keys and values");
  expect_says("gpt_neox", {{"attention_bias", false}}, "a gpt_neox without biases");
  expect_says("falcon", {{"bias", true}}, "a falcon with biases");
  EXPECT_EQ(said("granite", {{"attention_bias", true}, {"mlp_bias", true}}), "");
}

TEST(GgufKeys, LayersAreThoseThatReadersTakeForGranted) {
  expect_says("falcon", {{"alibi", true}}, "alibi true");
  expect_says("falcon", {{"parallel_attn", false}}, "parallel_attn false");
  expect_says("bloom", {{"apply_residual_connection_post_layernorm", true}}, "apply_residual_connection");
  expect_says("gpt2", {{"scale_attn_by_inverse_layer_idx", true}}, "scale_attn_by_inverse_layer_idx");
  expect_says("gemma2", {{"query_pre_attn_scalar", 100}}, "this query_pre_attn_scalar: readers take 8");
  expect_says("gemma2", {{"tie_word_embeddings", false}}, "an lm_head of its own");
  const json full = "full_attention", slides = "sliding_attention";
  expect_says("gemma2", {{"layer_types", {full, full, full, full}}}, "these layer_types");
  expect_says("gemma2", {{"layer_types", {full, slides, full, slides}}}, "these layer_types");
  expect_says("gemma3_text", {{"layer_types", {full, slides, slides, slides}}}, "these layer_types");
  EXPECT_EQ(said("gemma3_text", {{"layer_types", {full, full, full, full}}}), "");
  expect_says("smollm3", {{"no_rope_layers", {1, 1, 1, 1}}}, "these no_rope_layers");
  expect_says("qwen3_moe", {{"norm_topk_prob", false}}, "norm_topk_prob false");
  expect_says("qwen3_moe", {{"norm_topk_prob", true}, {"mlp_only_layers", {0}}}, "layers without experts");
  expect_says("olmoe", {{"norm_topk_prob", true}}, "norm_topk_prob true");
  expect_says("olmoe", {{"num_key_value_heads", 2}}, "fewer key/value heads than heads");
  expect_says("olmoe", {{"clip_qkv", 4.0}}, "clip_qkv");
  expect_says("phi", {{"qk_layernorm", true}}, "qk_layernorm true");
  expect_says("stablelm", {{"qk_layernorm", true}}, "qk_layernorm true");
  expect_says("glm", {{"head_dim", 16}}, "head_dim: readers divide hidden_size by num_attention_heads");
  EXPECT_EQ(said("glm4", {{"head_dim", 16}}), "");
  expect_says("gpt_bigcode", {{"multi_query", false}}, "multi_query false");
  expect_says("gpt_bigcode", {{"scale_attn_weights", false}}, "scale_attn_weights false");
  expect_says("olmo", {{"attention_bias", true}}, "an olmo with biases in queries, keys and values");
  expect_says("mistral", {{"sliding_window", 32}}, "pass over the sliding window of 32 tokens");
}

TEST(GgufKeys, ScalingsOfPositionsAreWrittenWhereReadersHaveThem) {
  json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}, {"beta_fast", 16}};
  GgufExport made;
  EXPECT_EQ(said("qwen2", {{"rope_scaling", yarn}}, &made), "");
  const std::pair<std::string, io::GgufItem> beta{"qwen2.rope.scaling.yarn_beta_fast", 16.0F};
  EXPECT_NE(std::find(made.metadata.begin(), made.metadata.end(), beta), made.metadata.end());
  yarn["attention_factor"] = 2.0;
  expect_says("qwen2", {{"rope_scaling", yarn}}, "attention_factor of yarn");
  const json linear = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(said("llama", {{"rope_scaling", linear}}), "");
  for (const char* type : {"gemma2", "phi", "stablelm", "glm"})
    expect_says(type, {{"rope_scaling", linear}}, std::string("this rope_scaling of ") + type);
  const json dynamic = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  expect_says("llama", {{"rope_scaling", dynamic}}, "this rope_scaling of llama");
}

}  // namespace
}  // namespace tessera::models
