// The modules of BERT, RoBERTa, ELECTRA, DistilBERT and DeBERTa.
#include "families/bert_config.h"
#include "families/blueprint.h"

namespace tessera::families {
namespace {

Blueprint layer_norm(const std::string& name, std::int64_t size) {
  return norm(name, size, NormForm::kWeightAndBias);
}

Blueprint embeddings(const BertConfig& c) {
  Blueprint out{.name = "embeddings", .parts = {embedding("word_embeddings", c.vocab_size, c.embedding_size)}};
  if (c.positions != BertPositions::kNone)
    out.parts.push_back(embedding("position_embeddings", c.max_positions, c.embedding_size));
  if (!c.distilbert() && c.type_vocab_size > 0)
    out.parts.push_back(embedding("token_type_embeddings", c.type_vocab_size, c.embedding_size));
  if (c.is_deberta() && c.embedding_size != c.hidden_size)
    out.parts.push_back(linear("embed_proj", c.embedding_size, c.hidden_size, Bias::kNone));
  out.parts.push_back(layer_norm("LayerNorm", c.is_deberta() ? c.hidden_size : c.embedding_size));
  return out;
}

/// DeBERTa's, with the projections of positions.
Blueprint disentangled_attention(const BertConfig& c) {
  const auto& d = c.deberta;
  const auto hidden = c.hidden_size;
  Blueprint out{.name = "self"};
  const bool first = c.family == BertFamily::kDeberta;
  if (first) {
    out.parameters = {{"q_bias", {hidden}}, {"v_bias", {hidden}}};
    out.parts = {linear("in_proj", hidden, 3 * hidden, Bias::kNone)};
  } else {
    for (const auto& name : {c.names.query, c.names.key, c.names.value})
      out.parts.push_back(linear(name, hidden, hidden, Bias::kWith));
  }
  if (!d.relative || d.shares_projections) return out;
  if (d.content_to_position)
    out.parts.push_back(linear(first ? "pos_proj" : "pos_key_proj", hidden, hidden, bias_if(!first)));
  if (d.position_to_content)
    out.parts.push_back(linear(first ? "pos_q_proj" : "pos_query_proj", hidden, hidden, Bias::kWith));
  return out;
}

/// What DeBERTa's encoder has beside its layers.
std::vector<Blueprint> beside_layers(const BertConfig& c) {
  const auto& d = c.deberta;
  std::vector<Blueprint> out;
  if (d.relative) out.push_back(embedding("rel_embeddings", 2 * d.span(), c.hidden_size));
  if (d.norms_positions) out.push_back(layer_norm("LayerNorm", c.hidden_size));
  if (d.conv_kernel > 0) {
    Blueprint conv{.name = "conv",
                   .parameters = {{"weight", {c.hidden_size, c.hidden_size / d.conv_groups, d.conv_kernel}},
                                  {"bias", {c.hidden_size}}}};
    out.push_back({.name = "conv", .parts = {conv, layer_norm("LayerNorm", c.hidden_size)}});
  }
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
  const auto self = c.is_deberta() ? disentangled_attention(c) : self_attention(c, "self");
  return {.parts = {{.name = "attention", .parts = {self, output(c, c.hidden_size)}},
                    dense(c, "intermediate", c.intermediate_size),
                    output(c, c.intermediate_size)}};
}

Blueprint backbone(const BertConfig& c) {
  Blueprint out{.name = c.names.base, .parts = {embeddings(c)}};
  if (!c.is_deberta() && c.embedding_size != c.hidden_size)
    out.parts.push_back(linear("embeddings_project", c.embedding_size, c.hidden_size, Bias::kWith));
  const auto layers = list("layer", c.num_layers, [&](std::int64_t) { return encoder_layer(c); });
  Blueprint encoder{.name = c.names.encoder, .parts = {layers}};
  for (auto& part : beside_layers(c)) encoder.parts.push_back(std::move(part));
  out.parts.push_back(std::move(encoder));
  if (c.pools) out.parts.push_back(dense(c, "pooler", c.hidden_size));
  return out;
}

/// Two layers. BERT's and DeBERTa's first one is the pooler, RoBERTa's and ELECTRA's stand in a module.
std::vector<Blueprint> classifier(const BertConfig& c) {
  const auto hidden = [&](const std::string& name) { return linear(name, c.hidden_size, c.hidden_size, Bias::kWith); };
  const auto last = [&](const std::string& name) {
    return linear(name, c.hidden_size, c.classifier.num_labels, Bias::kWith);
  };
  if (c.distilbert()) return {hidden("pre_classifier"), last("classifier")};
  if (c.family == BertFamily::kBert) return {last("classifier")};
  if (c.is_deberta()) return {dense(c, "pooler", c.hidden_size), last("classifier")};
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
                                        layer_norm(c.roberta() ? "layer_norm" : "LayerNorm", c.embedding_size)};
  if (!c.deberta.legacy_head) {
    const Blueprint newer{.name = "lm_head", .parameters = {{"bias", {c.vocab_size}}}, .parts = parts};
    return {{.name = "lm_predictions", .parts = {newer}}};
  }
  Blueprint head{.name = c.roberta() ? "lm_head" : "predictions", .parameters = {{"bias", {c.vocab_size}}}};
  if (c.roberta()) head.parts = parts;
  if (!c.tied) head.parts.push_back(linear("decoder", c.embedding_size, c.vocab_size, Bias::kNone));
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
