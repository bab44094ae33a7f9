#include "families/bert_config.h"

#include "families/decoder_parse.h"

namespace tessera::families {
namespace {

BertHead head_of(const ConfigReader& in, const std::string& prefix) {
  const auto names = in.get<std::vector<std::string>>("architectures", {});
  const auto name = names.empty() ? prefix + "ForMaskedLM" : names.front();
  if (is_classifier(in)) return BertHead::kSequenceClassification;
  if (name.ends_with("ForMaskedLM") || name.ends_with("ForPreTraining") || name == prefix + "Model")
    return BertHead::kMaskedLm;  // a base alone, too: a task that needs another head gives it one
  throw ConfigError(in.file() + ": architecture '" + name + "' is not built; known are " + prefix +
                        "ForSequenceClassification, " + prefix + "ForMaskedLM and " + prefix + "Model",
                    "architectures");
}

BertPositions positions_of(const ConfigReader& in) {
  const char* key = "position_embedding_type";
  const auto name = in.contains(key) ? in.get<std::string>(key, "null") : "absolute";
  if (name == "absolute") return BertPositions::kAbsolute;
  if (name == "relative_key") return BertPositions::kRelativeKey;
  if (name == "relative_key_query") return BertPositions::kRelativeKeyQuery;
  throw ConfigError(
      in.file() + ": position_embedding_type '" + name + "' is none of absolute, relative_key, relative_key_query",
      key);
}

void refuse(const ConfigReader& in, const std::string& key, const std::string& why) {
  throw ConfigError(in.file() + ": '" + key + "' " + why, key);
}

}  // namespace

BertConfig parse_bert_config(const ConfigReader& in) {
  const auto type = in.get<std::string>("model_type", "bert");
  BertConfig c;
  c.roberta = type != "bert";
  c.class_prefix = type == "bert" ? "Bert" : type == "roberta" ? "Roberta" : "XLMRoberta";
  c.base_name = c.roberta ? "roberta" : "bert";
  c.head = head_of(in, c.class_prefix);
  c.vocab_size = in.positive("vocab_size", c.roberta ? 50265 : 30522);
  c.hidden_size = in.positive("hidden_size", 768);
  c.num_layers = in.count("num_hidden_layers", 12);
  c.num_heads = in.positive("num_attention_heads", 12);
  c.intermediate_size = in.positive("intermediate_size", 3072);
  c.max_positions = in.positive("max_position_embeddings", 512);
  c.type_vocab_size = in.positive("type_vocab_size", 2);
  c.pad_token_id = in.token("pad_token_id", c.roberta ? 1 : 0);
  const bool without_padding = in.contains("pad_token_id") && !in.has("pad_token_id");
  if (without_padding && c.roberta) refuse(in, "pad_token_id", "must not be null: positions count what is not padding");
  c.padding_idx = without_padding ? -1 : c.pad_token_id;
  c.hidden_dropout = in.get<double>("hidden_dropout_prob", 0.1);
  c.attention_dropout = in.get<double>("attention_probs_dropout_prob", 0.1);
  c.classifier_dropout = in.get<double>("classifier_dropout", c.hidden_dropout);
  c.norm_eps = in.get<double>("layer_norm_eps", 1e-12);
  c.initializer_range = in.get<double>("initializer_range", 0.02);
  c.activation = parse_activation(in, "hidden_act", "gelu");
  c.classifier = parse_classifier(in);
  c.tied = in.get<bool>("tie_word_embeddings", true);
  c.stored_dtype = stored_dtype(in);
  c.positions = positions_of(in);
  if (in.get<bool>("add_cross_attention", false)) refuse(in, "add_cross_attention", "is not supported: encoders alone");
  if (in.get<bool>("is_decoder", false)) refuse(in, "is_decoder", "is not supported: only encoders are built");
  if (c.pad_token_id < 0) refuse(in, "pad_token_id", "must not be negative: it is a row of the token table");
  if (c.hidden_size % c.num_heads != 0) refuse(in, "num_attention_heads", "must divide hidden_size");
  if (c.longest_row() <= 0) refuse(in, "max_position_embeddings", "leaves no position beside those of padding");
  return c;
}

}  // namespace tessera::families
