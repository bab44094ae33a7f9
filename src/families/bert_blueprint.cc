// The modules of BERT, RoBERTa and XLM-RoBERTa.
#include "families/bert_config.h"
#include "families/blueprint.h"

namespace tessera::families {
namespace {

Blueprint layer_norm(const BertConfig& c, const std::string& name) {
  return norm(name, c.hidden_size, NormForm::kWeightAndBias);
}

Blueprint embeddings(const BertConfig& c) {
  return {.name = "embeddings",
          .parts = {embedding("word_embeddings", c.vocab_size, c.hidden_size),
                    embedding("position_embeddings", c.max_positions, c.hidden_size),
                    embedding("token_type_embeddings", c.type_vocab_size, c.hidden_size), layer_norm(c, "LayerNorm")}};
}

Blueprint self_attention(const BertConfig& c) {
  Blueprint out{.name = "self"};
  for (const char* name : {"query", "key", "value"})
    out.parts.push_back(linear(name, c.hidden_size, c.hidden_size, Bias::kWith));
  if (c.positions != BertPositions::kAbsolute)
    out.parts.push_back(embedding("distance_embedding", 2 * c.max_positions - 1, c.hidden_size / c.num_heads));
  return out;
}

/// A module with one matrix, "dense".
Blueprint dense(const BertConfig& c, const std::string& name, std::int64_t outputs) {
  return {.name = name, .parts = {linear("dense", c.hidden_size, outputs, Bias::kWith)}};
}

/// What adds a branch to the residual.
Blueprint output(const BertConfig& c, std::int64_t inputs) {
  return {.name = "output", .parts = {linear("dense", inputs, c.hidden_size, Bias::kWith), layer_norm(c, "LayerNorm")}};
}

Blueprint encoder_layer(const BertConfig& c) {
  return {.parts = {{.name = "attention", .parts = {self_attention(c), output(c, c.hidden_size)}},
                    dense(c, "intermediate", c.intermediate_size),
                    output(c, c.intermediate_size)}};
}

Blueprint backbone(const BertConfig& c) {
  const auto layers = list("layer", c.num_layers, [&](std::int64_t) { return encoder_layer(c); });
  Blueprint out{.name = c.base_name, .parts = {embeddings(c), {.name = "encoder", .parts = {layers}}}};
  if (!c.roberta && c.head == BertHead::kSequenceClassification) out.parts.push_back(dense(c, "pooler", c.hidden_size));
  return out;
}

/// RoBERTa's has two layers, BERT's one behind the pooler.
Blueprint classifier(const BertConfig& c) {
  if (!c.roberta) return linear("classifier", c.hidden_size, c.classifier.num_labels, Bias::kWith);
  return {.name = "classifier",
          .parts = {linear("dense", c.hidden_size, c.hidden_size, Bias::kWith),
                    linear("out_proj", c.hidden_size, c.classifier.num_labels, Bias::kWith)}};
}

/// The head's bias stands in itself; its matrix is the word table where it is tied.
Blueprint masked_lm_head(const BertConfig& c) {
  const std::vector<Blueprint> transform = {linear("dense", c.hidden_size, c.hidden_size, Bias::kWith),
                                            layer_norm(c, c.roberta ? "layer_norm" : "LayerNorm")};
  Blueprint head{.name = c.roberta ? "lm_head" : "predictions", .parameters = {{"bias", {c.vocab_size}}}};
  if (c.roberta) head.parts = transform;
  if (!c.tied) head.parts.push_back(linear("decoder", c.hidden_size, c.vocab_size, Bias::kNone));
  if (c.roberta) return head;
  head.parts.push_back({.name = "transform", .parts = transform});
  return {.name = "cls", .parts = {head}};
}

}  // namespace

Blueprint blueprint(const BertConfig& c) {
  return {.parts = {backbone(c), c.head == BertHead::kSequenceClassification ? classifier(c) : masked_lm_head(c)}};
}

}  // namespace tessera::families
