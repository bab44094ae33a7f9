#pragma once
// Heads of sequence classification, as config.json describes them (transformers' ForSequenceClassification).
#include <cstdint>

#include "families/config_reader.h"

namespace tessera::families {

/// How a classifier's loss reads its labels; kByLabels: a single number is a regression, integers are classes, others
/// are independent labels.
enum class ProblemType { kByLabels, kRegression, kSingleLabel, kMultiLabel };

struct ClassifierConfig {
  std::int64_t num_labels = 2;
  ProblemType problem = ProblemType::kByLabels;
  bool operator==(const ClassifierConfig&) const = default;
};

/// Whether "architectures" names a sequence classifier.
bool is_classifier(const ConfigReader& in);

/// Whether "architectures" names a body without a head: BertModel, LlamaModel, but not GPT2LMHeadModel.
bool is_body_alone(const ConfigReader& in);

/// "num_labels", or the size of "id2label"; "problem_type". ConfigError for values out of range.
ClassifierConfig parse_classifier(const ConfigReader& in);

}  // namespace tessera::families
