#pragma once
// Flags that transformers' example scripts (run_classification.py, run_summarization.py, run_translation.py) have in
// common.
#include <cstdint>
#include <string>
#include <vector>

#include "config/options.h"
#include "data/split_files.h"
#include "data/text_pair.h"
#include "train/training_arguments.h"

namespace tessera::tasks {

/// Those that change nothing, and those that are refused with what there is instead.
void add_script_flags(config::OptionTable& table);

/// --do_predict, and the rows that it is for.
struct PredictFlags {
  bool do_predict = false;
  std::string test_file, test_split = "test";  // the file's rows, or those of the data set's split
  std::int64_t max_predict_samples = 0;        // only the first; 0: all
  bool do_eval = true;                         // without training: evaluate
};

/// Rows to train on, to evaluate and to predict.
struct RowFlags {
  std::string dataset_path, dataset_config;           // data::DatasetName
  std::string validation_file;                        // empty: the data set's, or rows that are held out
  std::string validation_splits = "validation,eval";  // what the data set's are called: the first that is there
  PredictFlags predict;
  data::ReadOptions columns;
  double validation_split = 0.1;
  std::int64_t max_train_samples = 0, max_eval_samples = 0;  // only the first rows; 0: all
};

/// what_predict: the help of --do_predict. evaluated: what --max_eval_samples has an effect with; empty: always.
void add_row_flags(config::OptionTable& table, RowFlags& flags, const char* what_predict,
                   const std::vector<config::Need>& evaluated, const char* group);

/// Without training no data set is needed: rows to evaluate or to predict are enough, and predicting needs no
/// evaluation. Before check_job().
void check_row_flags(RowFlags& flags, train::TrainingArguments& training, config::Problems& problems);

/// Rows to train on and to evaluate; without a data set those of the validation file alone, if there is one.
data::PairSplits read_labelled_rows(const RowFlags& flags, const data::ReadOptions& columns, std::int64_t seed);

/// notes: gets the file's name and its number of rows.
std::vector<data::TextPair> read_test_rows(const RowFlags& flags, const data::ReadOptions& columns,
                                           std::vector<std::string>& notes);

}  // namespace tessera::tasks
