#include "tasks/script_flags.h"

#include <fmt/format.h>

namespace tessera::tasks {
namespace {

using config::Unused;

constexpr config::UnusedFlag kIdleOfScripts[] = {
    {"--overwrite_cache", Unused::kBool, "texts are tokenized for every run"},
    {"--preprocessing_num_workers", Unused::kNumber, "texts are tokenized in the process that reads them"},
    {"--use_fast_tokenizer", Unused::kBool, "there is one kind"},
    {"--trust_remote_code", Unused::kBool, "no code is ever loaded"},
};

constexpr config::RefusedFlag kRefusedOfScripts[] = {
    {"--config_name", Unused::kText, "the config.json in the model's folder counts; leave it out"},
    {"--cache_dir", Unused::kText, "HF_HUB_CACHE or HF_HOME in the environment says where downloads go"},
    {"--token", Unused::kText, "HF_TOKEN in the environment is the token of the Hub"},
    {"--model_revision", Unused::kText, "name it with the model: --model_name_or_path ORG/NAME@REVISION", "main"},
};

void add_predict_flags(config::OptionTable& table, PredictFlags& flags, const char* what, const char* group) {
  table.add(&flags.do_predict, {"--do_predict"}, what, group);
  const config::Need predict{"--do_predict", {"true"}};
  table.add(&flags.test_file, {"--test_file"}, "file of the test rows; empty: the data set's", group)
      .only_with({predict});
  table.add(&flags.test_split, {"--test_split", "--test_split_name"}, "split of the data set that they are", group)
      .only_with({predict})
      .idle_with({"--test_file", {config::kSet}});
  table.add(&flags.max_predict_samples, {"--max_predict_samples"}, "use only so many test rows; 0: all", group)
      .only_with({predict});
}

}  // namespace

void add_script_flags(config::OptionTable& table) {
  for (const auto& flag : kIdleOfScripts) table.add_without_effect(flag);
  for (const auto& flag : kRefusedOfScripts) table.add_refused(flag);
}

void add_row_flags(config::OptionTable& table, RowFlags& flags, const char* what_predict,
                   const std::vector<config::Need>& evaluated, const char* group) {
  table.add(
      &flags.dataset_path, {"--dataset_path", "--dataset_name", "--train_file"},
      "file, folder or name on the Hub: JSONL, JSON, CSV, Parquet, or sentence@label lines (FinancialPhraseBank); "
      "required to train",
      group);
  table.add(&flags.validation_file, {"--validation_file"},
            "file of rows to evaluate on; empty: the data set's, or --validation_split of its rows", group);
  add_predict_flags(table, flags.predict, what_predict, group);
  table.add(&flags.dataset_config, {"--dataset_config", "--dataset_config_name"},
            "one of several configurations of the data set: as its card names it, or a folder", group);
  table.add(&flags.columns.label_names, {"--label_names"}, "names of integer labels 0, 1, ...", group);
  using data::FileEncoding;
  table.add_enum(&flags.columns.encoding,
                 {{"auto", FileEncoding::kAuto}, {"utf-8", FileEncoding::kUtf8}, {"iso-8859-1", FileEncoding::kLatin1}},
                 {"--encoding"}, "of text files; auto: UTF-8, or ISO-8859-1 for a .txt file that is not UTF-8", group);
  table.add(&flags.validation_split, {"--validation_split", "--validation_split_percentage"},
            "part of the rows held out (a fraction, or percent from 1 up) when the data has no validation file", group);
  table.add(&flags.max_train_samples, {"--max_train_samples"}, "use only so many training rows; 0: all", group);
  auto& samples =
      table.add(&flags.max_eval_samples, {"--max_eval_samples"}, "use only so many rows of evaluation; 0: all", group);
  if (!evaluated.empty()) samples.only_with(evaluated);
}

void check_row_flags(RowFlags& flags, train::TrainingArguments& training, config::Problems& problems) {
  PredictFlags& predict = flags.predict;
  const bool alone = predict.do_predict && !training.do_train;
  const bool predicts = alone && !predict.test_file.empty();
  const bool evaluates = !training.do_train && !flags.validation_file.empty();
  problems.require(
      !flags.dataset_path.empty() || predicts || evaluates,
      "--dataset_path is required (without training, --do_train false, --validation_file FILE is enough to "
      "evaluate, and --do_predict --test_file FILE to predict)",
      "dataset_path");
  problems.require(predict.max_predict_samples >= 0, "--max_predict_samples must not be negative",
                   "max_predict_samples");
  problems.require(flags.max_train_samples >= 0 && flags.max_eval_samples >= 0,
                   "--max_train_samples and --max_eval_samples must not be negative", "max_train_samples");
  if (flags.validation_split >= 1) flags.validation_split /= 100;  // the Trainer's scripts give percent
  problems.require(flags.validation_split >= 0 && flags.validation_split < 1,
                   "--validation_split must be in [0, 1), or a percentage below 100", "validation_split");
  if (!alone) return;
  predict.do_eval = training.do_eval.value_or(true);
  training.do_eval = true;
}

data::PairSplits read_labelled_rows(const RowFlags& flags, const data::ReadOptions& columns, std::int64_t seed) {
  if (!flags.dataset_path.empty())
    return data::read_splits({flags.dataset_path, flags.dataset_config}, columns,
                             {.validation_fraction = flags.validation_split,
                              .seed = static_cast<std::uint64_t>(seed),
                              .validation_file = flags.validation_file,
                              .validation_splits = flags.validation_splits});
  data::PairSplits out;
  if (flags.validation_file.empty()) return out;
  out.validation = data::read_split({.name = flags.validation_file, .config = {}}, "train", columns);
  out.notes.push_back(fmt::format("rows to evaluate: {} ({})", flags.validation_file, out.validation.size()));
  return out;
}

std::vector<data::TextPair> read_test_rows(const RowFlags& flags, const data::ReadOptions& columns,
                                           std::vector<std::string>& notes) {
  const PredictFlags& predict = flags.predict;
  auto rows = predict.test_file.empty()
                  ? data::read_split({flags.dataset_path, flags.dataset_config}, predict.test_split, columns)
                  : data::read_split({.name = predict.test_file, .config = {}}, "train", columns);
  notes.push_back(fmt::format("rows to predict: {} ({})", rows.front().file, rows.size()));
  data::keep_first(rows, predict.max_predict_samples);
  return rows;
}

}  // namespace tessera::tasks
