#pragma once
// The rows of a classifier: texts as tokens, and what they are to be called.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/row_mark.h"
#include "families/classifier.h"
#include "tasks/classify.h"
#include "tasks/classify_metrics.h"
#include "text/tokenizer.h"

namespace tessera::tasks {

struct ClassRows {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::vector<std::int32_t>> type_ids;  // by row; empty: all 0
  /// [N] int64 classes; [N, K] float32, 1 where a class holds; [N] float32 numbers.
  at::Tensor labels;
  data::RowMark mark(std::int64_t i) const;
  std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }
};

struct ClassData {
  std::shared_ptr<const text::Tokenizer> tokenizer;  // with a padding token
  families::ProblemType problem = families::ProblemType::kSingleLabel;
  std::vector<std::string> names;         // of the classes; of a regression "score"
  ClassRows train, validation, test;      // of test without what they are to be called
  ClassRows mismatched, mismatched_test;  // MNLI's other sets; empty: there are none
  std::vector<std::string> notes;
  ClassMeasures measures = ClassMeasures::kOfProblem;
};

/// What a classifier's folder says of its classes.
struct KnownClasses {
  families::ClassifierConfig config;
  std::vector<std::string> names;  // id2label; empty: none, or only LABEL_0, LABEL_1, ...
};
/// adapter_folder: its head comes before the model's; empty: there is none. Nothing: neither is a classifier.
std::optional<KnownClasses> known_classes(const std::string& model_folder, const std::string& adapter_folder = {});

/// Reads, splits and tokenizes. Without a data set only the rows of test_file, and the classes are the known ones.
/// DataError names file and line of a label that does not fit.
ClassData load_class_data(const ClassifyOptions& options, const std::string& tokenizer_path,
                          const std::optional<KnownClasses>& known);

struct ClassBatch {
  at::Tensor input_ids, attention_mask;  // [B, S]
  at::Tensor token_type_ids;             // [B, S]; undefined: all 0
  at::Tensor labels;                     // rows of ClassRows::labels
  at::Tensor row_ids;                    // [B]
  bool is_empty = false;  // a rank without rows takes part with one of padding, whose loss does not count
};
/// length: of every row; 0: of the longest.
ClassBatch collate_classes(const ClassRows& rows, const std::vector<std::int64_t>& numbers, std::int64_t pad_id,
                           std::int64_t length);

}  // namespace tessera::tasks
