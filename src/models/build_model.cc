// config.json -> modules without memory, and what the rest of the program asks about the family.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "families/config_reader.h"
#include "families/families.h"
#include "families/layer_classes.h"
#include "io/safetensors_dtype.h"
#include "models/bert_model.h"
#include "models/causal_lm.h"
#include "models/check_sizes.h"
#include "models/decoder_classifier.h"
#include "models/gguf_model.h"
#include "models/t5_model.h"

namespace tessera::models {
namespace {

std::shared_ptr<Model> build(const families::T5Config& t5, at::ScalarType dtype, ModelConfig& out) {
  out.kind = ModelKind::kSeq2Seq;
  out.default_lora_targets = {"q", "v"};
  out.vocab_size = t5.vocab_size;
  out.pad_token_id = t5.pad_token_id;
  out.eos_token_id = t5.eos_token_id;
  out.decoder_start_token_id = t5.decoder_start_token_id;
  out.task_type = "SEQ_2_SEQ_LM";
  return std::make_shared<T5ForConditionalGeneration>(t5, dtype);
}

std::shared_ptr<Model> build(const families::DecoderConfig& c, at::ScalarType dtype, ModelConfig& out) {
  out.kind = c.classifier ? ModelKind::kSequenceClassification : ModelKind::kCausal;
  out.default_lora_targets = c.lora_targets;
  out.vocab_size = c.vocab_size;
  out.pad_token_id = c.pad_token_id;
  out.eos_token_id = c.eos_token_id;
  out.decoder_start_token_id = c.bos_token_id;
  out.task_type = c.classifier ? "SEQ_CLS" : "CAUSAL_LM";
  out.output_embedding = c.names.head;
  out.max_positions = c.position == families::PositionKind::kLearned ? c.position_rows : 0;
  if (c.position == families::PositionKind::kRotary) out.known_positions = c.max_positions;
  if (c.classifier) return std::make_shared<DecoderClassifier>(c, dtype);
  return std::make_shared<CausalLm>(c, dtype);
}

std::shared_ptr<Model> build(const families::BertConfig& c, at::ScalarType dtype, ModelConfig& out) {
  const bool classifies = c.head == families::BertHead::kSequenceClassification;
  out.kind = classifies ? ModelKind::kSequenceClassification : ModelKind::kMaskedLm;
  out.default_lora_targets = {c.names.query};
  if (c.names.value != c.names.query) out.default_lora_targets.push_back(c.names.value);
  out.vocab_size = c.vocab_size;
  out.pad_token_id = c.pad_token_id;
  out.task_type = classifies ? "SEQ_CLS" : "";
  out.output_embedding = masked_lm_head_name(c);
  if (c.positions == families::BertPositions::kNone)
    out.known_positions = c.max_positions;
  else
    out.max_positions = c.longest_row();
  return make_bert(c, dtype);
}

/// Null: the folder has none, or none that can be read.
std::shared_ptr<io::TensorSource> weights_of(const std::string& folder) {
  try {
    return open_model_weights(folder);
  } catch (const DataError&) {
    return nullptr;
  }
}

/// A T5 of which the configuration cannot tell; without weights it is as that says.
bool holds_untied_head(const std::string& folder, const families::ConfigReader& in) {
  const auto type = in.get<std::string>("model_type", "");
  if (!type.ends_with("t5") || !families::ties_by_weights(in)) return false;
  const auto weights = weights_of(folder);
  return weights && weights->find("lm_head.weight") != nullptr;
}

/// transformers 5 computes with absolute positions whatever config.json says, and writes no table of distances.
bool lacks_distances(const std::string& folder, const families::ConfigReader& in) {
  const std::string key = "position_embedding_type";
  if (!in.has(key) || !in.get<std::string>(key, "").starts_with("relative_key") || !families::is_of_transformers_5(in))
    return false;
  const auto weights = weights_of(folder);
  return weights && std::none_of(weights->tensors().begin(), weights->tensors().end(),
                                 [](const auto& tensor) { return tensor.name.ends_with("distance_embedding.weight"); });
}

/// What config.json would say of the classifier.
void make_classifier(nlohmann::json& json, const ClassifierHead& head) {
  using families::ProblemType;
  const auto name = [&] {
    switch (head.config.problem) {
      case ProblemType::kRegression:
        return "regression";
      case ProblemType::kMultiLabel:
        return "multi_label_classification";
      default:
        return "single_label_classification";
    }
  };
  json["architectures"] = {"ForSequenceClassification"};
  json["num_labels"] = head.config.num_labels;
  json.erase("id2label");
  json["problem_type"] = name();
}

}  // namespace

nlohmann::json read_described_config(const std::string& folder) {
  auto json = read_model_config(folder);
  const families::ConfigReader in(json, folder + "/config.json");
  const bool is_untied = holds_untied_head(folder, in), is_absolute = lacks_distances(folder, in);
  if (is_untied) json["tie_word_embeddings"] = false;
  if (is_absolute) json["position_embedding_type"] = "absolute";
  return json;
}

std::shared_ptr<Model> build_model(const std::string& folder, ModelConfig* config, const BuildOptions& options) {
  const std::string file = folder + "/config.json";
  auto json = read_described_config(folder);
  if (options.min_vocab_size > 0)
    json["vocab_size"] =
        std::max(options.min_vocab_size, families::ConfigReader(json, file).get<std::int64_t>("vocab_size", 0));
  if (!options.attn_implementation.empty()) json["attn_implementation"] = options.attn_implementation;
  if (options.classifier) make_classifier(json, *options.classifier);
  ModelConfig found;
  auto described = families::parse_config(json, file, &found.note);
  auto* decoder = std::get_if<families::DecoderConfig>(&described);
  if (decoder && options.classifier && options.classifier->pad_token_id >= 0)
    decoder->given_pad_token_id = options.classifier->pad_token_id;  // the table's own row of padding stays
  if (auto* bert = std::get_if<families::BertConfig>(&described); bert && options.pooler) bert->pools = true;
  found.model_type = families::ConfigReader(json, file).get<std::string>("model_type", "");
  found.no_split_classes = families::no_split_classes(described);
  found.folder = folder;
  found.quantization = families::read_quantization(json, file);
  found.stored_dtype = *io::safetensors_dtype(families::stored_dtype_of(described));
  const auto dtype = options.dtype.value_or(at::kFloat);
  auto model = std::visit([&](const auto& c) { return build(c, dtype, found); }, described);
  if (config) *config = std::move(found);
  return model;
}

}  // namespace tessera::models
