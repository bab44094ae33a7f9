#pragma once
#include <cstdint>
#include <string>

#include "base/layer_kinds.h"
#include "families/classifier.h"
#include "families/config_reader.h"

namespace tessera::families {

/// Families whose code differs. CamemBERT and XLM-RoBERTa are RoBERTa under other names.
enum class BertFamily { kBert, kRoberta, kElectra, kDistilBert, kDeberta, kDebertaV2 };
enum class BertHead { kSequenceClassification, kMaskedLm };
/// What embeddings and BERT's attention say of places (transformers' position_embedding_type). kNone: nothing, only
/// DeBERTa's attention may.
enum class BertPositions { kAbsolute, kRelativeKey, kRelativeKeyQuery, kNone };

/// Module names that differ.
struct BertNames {
  std::string base = "bert", encoder = "encoder", query = "query", key = "key", value = "value";
  bool operator==(const BertNames&) const = default;
};

/// What DeBERTa has beside BERT (He et al. 2021, He et al. 2023).
struct DebertaConfig {
  bool relative = false;                                          // attention sees the distances of tokens
  bool content_to_position = false, position_to_content = false;  // whose scores they enter
  std::int64_t scores = 1;          // terms of a score: it is divided by the root of scores * size of a head
  bool shares_projections = false;  // those of queries and keys project positions, too
  std::int64_t buckets = 0;         // distances share so many rows in each direction; 0: each has its own
  std::int64_t max_distance = 512;  // farther ones are the same
  bool norms_positions = false;
  std::int64_t conv_kernel = 0, conv_groups = 1;  // of a convolution beside the first layer; 0: none
  Activation conv_activation = Activation::kTanh, pooler_activation = Activation::kGelu;
  double pooler_dropout = 0;
  bool legacy_head = true;  // the masked-LM head is BERT's

  bool operator==(const DebertaConfig&) const = default;
  /// Rows of the table of positions in each direction.
  std::int64_t span() const { return buckets > 0 ? buckets : max_distance; }
};

/// What config.json says of a BERT, RoBERTa, ELECTRA, DistilBERT or DeBERTa (names and defaults: transformers'
/// BertConfig).
struct BertConfig {
  BertFamily family = BertFamily::kBert;
  std::string class_prefix = "Bert";  // BertModel, RobertaModel, XLMRobertaModel
  std::string part_prefix = "Bert";   // BertLayer, RobertaLayer; DistilBERT's parts have none
  BertNames names;
  BertHead head = BertHead::kMaskedLm;
  BertPositions positions = BertPositions::kAbsolute;
  std::int64_t vocab_size = 30522, hidden_size = 768, num_layers = 12, num_heads = 12, intermediate_size = 3072;
  std::int64_t embedding_size = 768;  // of the tables; a projection follows where it is not hidden_size
  std::int64_t max_positions = 512, type_vocab_size = 2, pad_token_id = 0;
  double hidden_dropout = 0.1, attention_dropout = 0.1, classifier_dropout = 0.1;
  double norm_eps = 1e-12, initializer_range = 0.02;
  Activation activation = Activation::kGelu;
  ClassifierConfig classifier;
  DebertaConfig deberta;
  std::int64_t padding_idx = 0;      // row of the token table without a gradient through the lookup; -1: none
  bool tied = true;                  // the masked-LM head's matrix is the word table
  bool pools = false;                // the body has a pooler: BERT's classifier has, BertModel and RobertaModel may
  std::string stored_dtype = "F32";  // as safetensors spells it

  bool operator==(const BertConfig&) const = default;
  bool roberta() const { return family == BertFamily::kRoberta; }
  bool distilbert() const { return family == BertFamily::kDistilBert; }
  bool is_deberta() const { return family == BertFamily::kDeberta || family == BertFamily::kDebertaV2; }
  /// The longest row: RoBERTa's first positions are padding_idx + 1.
  std::int64_t longest_row() const { return roberta() ? max_positions - pad_token_id - 1 : max_positions; }
};

/// Whether a token's position is counted from the id of padding on: with another one in config.json the same weights
/// compute something else.
bool counts_from_padding(const std::string& model_type);

/// Throws the ConfigError that a value of the key means: "'key' <why>".
[[noreturn]] void refuse(const ConfigReader& in, const std::string& key, const std::string& why);

/// Reads what DeBERTa has under keys of its own.
void read_deberta(const ConfigReader& in, BertConfig& config);

/// ConfigError names the key and the file for a wrong value, and for an architecture whose head is not built.
BertConfig parse_bert_config(const ConfigReader& in);

}  // namespace tessera::families
