#pragma once
// `tessera classify`: fine-tunes a classifier of texts (encoders such as BERT, decoders with a head of classification):
// one class or several for a text, or a number. transformers' run_classification.py with its flags, fully sharded.
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "data/text_pair.h"
#include "tasks/script_flags.h"
#include "tasks/training_job.h"

namespace tessera::tasks {

struct ClassifyOptions : JobOptions, RowFlags {
  ClassifyOptions();

  std::string task_name;              // of GLUE: its columns, classes and measures; empty: none
  std::string problem_type = "auto";  // regression, single_label_classification, multi_label_classification
  bool do_regression = false;         // the same as problem_type regression
  std::string label_separator = ",";  // between the labels of a text that has several
  std::int64_t max_length = 128;      // tokens of a text, or of two together, special ones included
  bool pad_to_max_length = false;
  bool ignore_mismatched_sizes = false;  // a head for another number of labels begins anew
  std::string pad_token;                 // empty: the tokenizer's, or eos
};

/// The flags, bound to `options`, whose values are the defaults.
config::OptionTable classify_table(ClassifyOptions& options);

/// nullopt: help was asked for and printed. ConfigError says all that is wrong with the flags.
std::optional<ClassifyOptions> parse_classify(const std::vector<std::string>& args, std::ostream& out);

int classify(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
