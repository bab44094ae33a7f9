#pragma once
#include <cstdint>
#include <string>

#include "base/layer_kinds.h"
#include "families/classifier.h"
#include "families/config_reader.h"

namespace tessera::families {

/// Families whose code differs. CamemBERT and XLM-RoBERTa are RoBERTa under other names.
enum class BertFamily { kBert, kRoberta, kElectra, kDistilBert };
enum class BertHead { kSequenceClassification, kMaskedLm };
/// How tokens learn where they are (transformers' position_embedding_type).
enum class BertPositions { kAbsolute, kRelativeKey, kRelativeKeyQuery };

/// Module names that differ.
struct BertNames {
  std::string base = "bert", encoder = "encoder", query = "query", key = "key", value = "value";
  bool operator==(const BertNames&) const = default;
};

/// What config.json says of a BERT, RoBERTa, ELECTRA or DistilBERT (names and defaults: transformers' BertConfig).
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
  std::int64_t padding_idx = 0;      // row of the token table without a gradient through the lookup; -1: none
  bool tied = true;                  // the masked-LM head's matrix is the word table
  std::string stored_dtype = "F32";  // as safetensors spells it

  bool operator==(const BertConfig&) const = default;
  bool roberta() const { return family == BertFamily::kRoberta; }
  bool distilbert() const { return family == BertFamily::kDistilBert; }
  /// The longest row: RoBERTa's first positions are padding_idx + 1.
  std::int64_t longest_row() const { return roberta() ? max_positions - pad_token_id - 1 : max_positions; }
};

/// ConfigError names the key and the file for a wrong value, and for an architecture whose head is not built.
BertConfig parse_bert_config(const ConfigReader& in);

}  // namespace tessera::families
