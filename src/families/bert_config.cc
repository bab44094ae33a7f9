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

/// What model_type says: the family, its names, and defaults that differ from BERT's.
BertConfig started(const ConfigReader& in) {
  const auto type = in.get<std::string>("model_type", "bert");
  BertConfig c;
  const auto named = [&](BertFamily family, const std::string& prefix, const std::string& base) {
    c.family = family;
    c.class_prefix = c.part_prefix = prefix;
    c.names.base = base;
  };
  if (type == "roberta") named(BertFamily::kRoberta, "Roberta", "roberta");
  if (type == "roberta") c.vocab_size = 50265;
  if (type == "camembert") named(BertFamily::kRoberta, "Camembert", "roberta");
  if (type == "xlm-roberta") named(BertFamily::kRoberta, "XLMRoberta", "roberta");
  if (type == "electra") {
    named(BertFamily::kElectra, "Electra", "electra");
    c.embedding_size = 128;
    c.hidden_size = 256;
    c.num_heads = 4;
    c.intermediate_size = 1024;
  }
  if (type == "distilbert") {
    named(BertFamily::kDistilBert, "DistilBert", "distilbert");
    c.part_prefix = "";
    c.names = {"distilbert", "transformer", "q_lin", "k_lin", "v_lin"};
  }
  if (type == "deberta") {
    named(BertFamily::kDeberta, "Deberta", "deberta");
    c.vocab_size = 50265;
    c.names.query = c.names.value = "in_proj";
  }
  if (type == "deberta-v2") {
    named(BertFamily::kDebertaV2, "DebertaV2", "deberta");
    c.vocab_size = 128100;
    c.hidden_size = c.embedding_size = 1536;
    c.num_layers = c.num_heads = 24;
    c.intermediate_size = 6144;
    c.names.query = "query_proj";
    c.names.key = "key_proj";
    c.names.value = "value_proj";
  }
  if (c.roberta()) c.pad_token_id = 1;
  return c;
}

void read_sizes(const ConfigReader& in, BertConfig& c) {
  c.hidden_size = in.positive("hidden_size", c.hidden_size);
  c.num_layers = in.count("num_hidden_layers", c.num_layers);
  c.num_heads = in.positive("num_attention_heads", c.num_heads);
  c.intermediate_size = in.positive("intermediate_size", c.intermediate_size);
  c.embedding_size = c.hidden_size;
  if (c.family == BertFamily::kElectra) c.embedding_size = in.positive("embedding_size", 128);
  if (c.is_deberta()) c.embedding_size = in.positive("embedding_size", c.hidden_size);
  c.type_vocab_size = c.is_deberta() ? in.get<std::int64_t>("type_vocab_size", 0) : in.positive("type_vocab_size", 2);
  c.hidden_dropout = in.get<double>("hidden_dropout_prob", 0.1);
  c.attention_dropout = in.get<double>("attention_probs_dropout_prob", 0.1);
  c.classifier_dropout = in.get<double>(c.is_deberta() ? "cls_dropout" : "classifier_dropout", c.hidden_dropout);
  c.norm_eps = in.get<double>("layer_norm_eps", c.is_deberta() ? 1e-7 : 1e-12);
  c.activation = parse_activation(in, "hidden_act", "gelu");
  if (!c.is_deberta()) c.positions = positions_of(in);
}

/// The same in DistilBERT's keys, some of which have a second name.
void read_distilbert_sizes(const ConfigReader& in, BertConfig& c) {
  c.hidden_size = c.embedding_size = in.positive("hidden_size", in.positive("dim", 768));
  c.num_layers = in.count("num_hidden_layers", in.count("n_layers", 6));
  c.num_heads = in.positive("num_attention_heads", in.positive("n_heads", 12));
  c.intermediate_size = in.positive("hidden_dim", 4 * 768);
  c.hidden_dropout = in.get<double>("dropout", 0.1);
  c.attention_dropout = in.get<double>("attention_dropout", 0.1);
  c.classifier_dropout = in.get<double>("seq_classif_dropout", 0.2);
  c.activation = parse_activation(in, "activation", "gelu");
  require(in, "sinusoidal_pos_embds", false, "is not supported: the table of positions is a trained one here");
}

}  // namespace

bool counts_from_padding(const std::string& model_type) {
  return model_type == "roberta" || model_type == "camembert" || model_type == "xlm-roberta";
}

void refuse(const ConfigReader& in, const std::string& key, const std::string& why) {
  throw ConfigError(in.file() + ": '" + key + "' " + why, key);
}

BertConfig parse_bert_config(const ConfigReader& in) {
  auto c = started(in);
  c.head = head_of(in, c.class_prefix);
  c.pools = c.family == BertFamily::kBert && c.head == BertHead::kSequenceClassification;
  if (c.distilbert())
    read_distilbert_sizes(in, c);
  else
    read_sizes(in, c);
  c.vocab_size = in.positive("vocab_size", c.vocab_size);
  c.max_positions = in.positive("max_position_embeddings", 512);
  c.pad_token_id = in.token("pad_token_id", c.pad_token_id);
  const bool without_padding = in.contains("pad_token_id") && !in.has("pad_token_id");
  if (without_padding && c.roberta())
    refuse(in, "pad_token_id", "must not be null: positions count what is not padding");
  c.padding_idx = without_padding ? -1 : c.pad_token_id;
  c.initializer_range = in.get<double>("initializer_range", 0.02);
  c.classifier = parse_classifier(in);
  c.tied = in.get<bool>("tie_word_embeddings", true);
  c.stored_dtype = stored_dtype(in);
  if (c.is_deberta()) read_deberta(in, c);
  if (in.get<bool>("add_cross_attention", false)) refuse(in, "add_cross_attention", "is not supported: encoders alone");
  if (in.get<bool>("is_decoder", false)) refuse(in, "is_decoder", "is not supported: only encoders are built");
  if (c.pad_token_id < 0) refuse(in, "pad_token_id", "must not be negative: it is a row of the token table");
  if (c.hidden_size % c.num_heads != 0) refuse(in, "num_attention_heads", "must divide hidden_size");
  if (c.longest_row() <= 0) refuse(in, "max_position_embeddings", "leaves no position beside those of padding");
  return c;
}

}  // namespace tessera::families
