#include "models/gguf_bert.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/gguf_keys.h"
#include "models/gguf_names.h"

namespace tessera::models {
namespace {

using families::BertConfig;
using nlohmann::json;

constexpr std::pair<const char*, const char*> kBertSizes[] = {{"block_count", "num_hidden_layers"},
                                                              {"context_length", "max_position_embeddings"},
                                                              {"embedding_length", "hidden_size"},
                                                              {"feed_forward_length", "intermediate_size"},
                                                              {"attention.head_count", "num_attention_heads"}};
constexpr const char* kLabels = "classifier.output_labels";

bool is_classifier(const BertConfig& c) {
  return c.head == families::BertHead::kSequenceClassification;
}

void check(const BertConfig& c) {
  if (c.activation != Activation::kGelu && c.activation != Activation::kGeluTanh)
    refuse_in_gguf("this hidden_act: readers compute gelu");
  if (c.positions != families::BertPositions::kAbsolute)
    refuse_in_gguf("position_embedding_type: readers have absolute positions");
}

/// In the order of their ids.
std::vector<std::string> labels_of(const BertConfig& c, const json& config) {
  std::map<std::int64_t, std::string> named;
  for (std::int64_t i = 0; i < c.classifier.num_labels; ++i) named[i] = fmt::format("LABEL_{}", i);
  const json given = config.value("id2label", json());
  if (given.is_object())
    for (const auto& [id, name] : given.items())
      if (name.is_string() && named.contains(std::atoll(id.c_str()))) named[std::atoll(id.c_str())] = name;
  std::vector<std::string> labels;
  for (const auto& [id, name] : named) labels.push_back(name);
  return labels;
}

}  // namespace

GgufSubject gguf_bert_subject(const BertConfig& c) {
  return {.family = gguf_family(c),
          .model_type = c.roberta() ? "roberta" : "bert",
          .head = "",
          .first_position = c.max_positions - c.longest_row(),
          .heads = {c.num_heads, c.num_heads},
          .layers = c.num_layers,
          .vocab_size = c.vocab_size};
}

GgufExport gguf_bert_keys(const BertConfig& c, const json& config) {
  check(c);
  GgufExport out;
  out.architecture = "bert";
  const auto add = [&](const std::string& key, io::GgufItem value) {
    out.metadata.emplace_back(out.architecture + "." + key, std::move(value));
  };
  const std::int64_t sizes[] = {c.num_layers, c.longest_row(), c.hidden_size, c.intermediate_size, c.num_heads};
  for (std::size_t i = 0; i < std::size(kBertSizes); ++i)
    add(kBertSizes[i].first, static_cast<std::uint32_t>(sizes[i]));
  add("attention.layer_norm_epsilon", static_cast<float>(c.norm_eps));
  add("attention.causal", false);
  if (is_classifier(c)) add(kLabels, labels_of(c, config));
  return out;
}

json gguf_bert_config(const io::GgufFile& file) {
  const auto& header = file.header();
  json out = {{"model_type", "bert"}, {"architectures", {"BertForMaskedLM"}}};
  for (const auto& [stored, name] : kBertSizes)
    if (const auto value = header.integer(std::string("bert.") + stored)) out[name] = *value;
  if (const auto eps = header.number("bert.attention.layer_norm_epsilon")) out["layer_norm_eps"] = *eps;
  const auto* types = file.find("token_types.weight");
  if (types && !types->shape.empty()) out["type_vocab_size"] = types->shape[0];
  if (gguf_family(file) == "bert") return out;
  out["architectures"] = {"BertForSequenceClassification"};
  const auto* head = file.find("cls.output.weight");
  const auto* labels = header.texts(std::string("bert.") + kLabels);
  const auto count = head->shape.empty() ? std::int64_t{0} : head->shape[0];
  for (std::int64_t i = 0; i < count; ++i) {
    const bool is_named = labels && static_cast<std::size_t>(i) < labels->size();
    out["id2label"][std::to_string(i)] = is_named ? (*labels)[static_cast<std::size_t>(i)] : fmt::format("LABEL_{}", i);
  }
  return out;
}

}  // namespace tessera::models
