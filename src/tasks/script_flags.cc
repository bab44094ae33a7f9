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

}  // namespace

void add_script_flags(config::OptionTable& table) {
  for (const auto& flag : kIdleOfScripts) table.add_without_effect(flag);
  for (const auto& flag : kRefusedOfScripts) table.add_refused(flag);
}

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

void check_predict_flags(PredictFlags& flags, const std::string& dataset_path, const std::string& validation_file,
                         train::TrainingArguments& training, config::Problems& problems) {
  const bool alone = flags.do_predict && !training.do_train;
  const bool predicts = alone && !flags.test_file.empty(), evaluates = !training.do_train && !validation_file.empty();
  problems.require(
      !dataset_path.empty() || predicts || evaluates,
      "--dataset_path is required (without training, --do_train false, --validation_file FILE is enough to "
      "evaluate, and --do_predict --test_file FILE to predict)",
      "dataset_path");
  problems.require(flags.max_predict_samples >= 0, "--max_predict_samples must not be negative", "max_predict_samples");
  if (!alone) return;
  flags.do_eval = training.do_eval.value_or(true);
  training.do_eval = true;
}

data::PairSplits read_labelled_rows(const data::DatasetName& dataset, const data::ReadOptions& columns,
                                    const data::SplitOptions& split) {
  if (!dataset.name.empty()) return data::read_splits(dataset, columns, split);
  data::PairSplits out;
  if (split.validation_file.empty()) return out;
  out.validation = data::read_split({.name = split.validation_file, .config = {}}, "train", columns);
  out.notes.push_back(fmt::format("rows to evaluate: {} ({})", split.validation_file, out.validation.size()));
  return out;
}

std::vector<data::TextPair> read_test_rows(const PredictFlags& flags, const data::DatasetName& dataset,
                                           const data::ReadOptions& columns, std::vector<std::string>& notes) {
  auto rows = flags.test_file.empty() ? data::read_split(dataset, flags.test_split, columns)
                                      : data::read_split({.name = flags.test_file, .config = {}}, "train", columns);
  notes.push_back(fmt::format("rows to predict: {} ({})", rows.front().file, rows.size()));
  data::keep_first(rows, flags.max_predict_samples);
  return rows;
}

}  // namespace tessera::tasks
