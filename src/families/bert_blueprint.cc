// The modules of BERT, RoBERTa, ELECTRA and DistilBERT.
#include "families/bert_config.h"
#include "families/blueprint.h"

namespace tessera::families {
namespace {

Blueprint layer_norm(const std::string& name, std::int64_t size) {
  return norm(name, size, NormForm::kWeightAndBias);
}

Blueprint embeddings(const BertConfig& c) {
  Blueprint out{.name = "embeddings",
                .parts = {embedding("word_embeddings", c.vocab_size, c.embedding_size),
                          embedding("position_embeddings", c.max_positions, c.embedding_size)}};
  if (!c.distilbert()) out.parts.push_back(embedding("token_type_embeddings", c.type_vocab_size, c.embedding_size));
  out.parts.push_back(layer_norm("LayerNorm", c.embedding_size));
  return out;
}

Blueprint self_attention(const BertConfig& c, const std::string& module) {
  Blueprint out{.name = module};
  for (const auto& name : {c.names.query, c.names.key, c.names.value})
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
  return {.name = "output",
          .parts = {linear("dense", inputs, c.hidden_size, Bias::kWith), layer_norm("LayerNorm", c.hidden_size)}};
}

Blueprint distilbert_layer(const BertConfig& c) {
  auto attention = self_attention(c, "attention");
  attention.parts.push_back(linear("out_lin", c.hidden_size, c.hidden_size, Bias::kWith));
  return {.parts = {attention,
                    layer_norm("sa_layer_norm", c.hidden_size),
                    {.name = "ffn",
                     .parts = {linear("lin1", c.hidden_size, c.intermediate_size, Bias::kWith),
                               linear("lin2", c.intermediate_size, c.hidden_size, Bias::kWith)}},
                    layer_norm("output_layer_norm", c.hidden_size)}};
}

Blueprint encoder_layer(const BertConfig& c) {
  if (c.distilbert()) return distilbert_layer(c);
  return {.parts = {{.name = "attention", .parts = {self_attention(c, "self"), output(c, c.hidden_size)}},
                    dense(c, "intermediate", c.intermediate_size),
                    output(c, c.intermediate_size)}};
}

Blueprint backbone(const BertConfig& c) {
  Blueprint out{.name = c.names.base, .parts = {embeddings(c)}};
  if (c.embedding_size != c.hidden_size)
    out.parts.push_back(linear("embeddings_project", c.embedding_size, c.hidden_size, Bias::kWith));
  const auto layers = list("layer", c.num_layers, [&](std::int64_t) { return encoder_layer(c); });
  out.parts.push_back({.name = c.names.encoder, .parts = {layers}});
  if (c.family == BertFamily::kBert && c.head == BertHead::kSequenceClassification)
    out.parts.push_back(dense(c, "pooler", c.hidden_size));
  return out;
}

/// Two layers. BERT's first one is the pooler, RoBERTa's and ELECTRA's stand in a module.
std::vector<Blueprint> classifier(const BertConfig& c) {
  const auto hidden = [&](const std::string& name) { return linear(name, c.hidden_size, c.hidden_size, Bias::kWith); };
  const auto last = [&](const std::string& name) {
    return linear(name, c.hidden_size, c.classifier.num_labels, Bias::kWith);
  };
  if (c.distilbert()) return {hidden("pre_classifier"), last("classifier")};
  if (c.family == BertFamily::kBert) return {last("classifier")};
  return {{.name = "classifier", .parts = {hidden("dense"), last("out_proj")}}};
}

/// The matrix of a masked-LM head with its bias, which stands alone where the word table is the matrix.
Blueprint projector(const BertConfig& c, const std::string& name) {
  if (!c.tied) return linear(name, c.embedding_size, c.vocab_size, Bias::kWith);
  return {.name = name, .parameters = {{"bias", {c.vocab_size}}}};
}

std::vector<Blueprint> masked_lm_head(const BertConfig& c) {
  const auto transform = [&](const std::string& name) {
    return linear(name, c.hidden_size, c.embedding_size, Bias::kWith);
  };
  if (c.distilbert()) {
    return {transform("vocab_transform"), layer_norm("vocab_layer_norm", c.hidden_size),
            projector(c, "vocab_projector")};
  }
  if (c.family == BertFamily::kElectra) {
    return {{.name = "generator_predictions", .parts = {layer_norm("LayerNorm", c.embedding_size), transform("dense")}},
            projector(c, "generator_lm_head")};
  }
  // Here the bias stands in the head itself, also where there is a matrix.
  const std::vector<Blueprint> parts = {transform("dense"),
                                        layer_norm(c.roberta() ? "layer_norm" : "LayerNorm", c.hidden_size)};
  Blueprint head{.name = c.roberta() ? "lm_head" : "predictions", .parameters = {{"bias", {c.vocab_size}}}};
  if (c.roberta()) head.parts = parts;
  if (!c.tied) head.parts.push_back(linear("decoder", c.hidden_size, c.vocab_size, Bias::kNone));
  if (c.roberta()) return {head};
  head.parts.push_back({.name = "transform", .parts = parts});
  return {{.name = "cls", .parts = {head}}};
}

}  // namespace

Blueprint blueprint(const BertConfig& c) {
  Blueprint out{.parts = c.head == BertHead::kSequenceClassification ? classifier(c) : masked_lm_head(c)};
  out.parts.insert(out.parts.begin(), backbone(c));
  return out;
}

}  // namespace tessera::families
