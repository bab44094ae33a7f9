#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <ranges>
#include <string>
#include <vector>

#include "config/options.h"
#include "tasks/classify.h"
#include "tasks/glue.h"
#include "tasks/parse_task.h"

namespace tessera::tasks {
namespace {

void add_model(config::OptionTable& table, ClassifyOptions& o) {
  const char* group = "Model";
  table
      .add(&o.model_name_or_path, {"--model_name_or_path", "--model"},
           "folder, or name on the Hub, of a classifier, or of a model that gets a new head: an encoder such as BERT, "
           "or a decoder",
           group)
      .required();
  table.add(&o.tokenizer_name_or_path, {"--tokenizer_name_or_path", "--tokenizer_name"},
            "folder or file of the tokenizer, if not the model's folder", group);
  table.add(&o.ignore_mismatched_sizes, {"--ignore_mismatched_sizes"},
            "a head for another number of labels than the data has begins anew", group);
  table.add(&o.pad_token, {"--pad_token"}, "empty: the tokenizer's, or eos", group);
  add_lora_flags(table, o.adapter, "Adapters");
  refuse_adapter_list(table);
  add_quant_flags(table, o.quant, "Packed weights");
}

void add_data(config::OptionTable& table, ClassifyOptions& o) {
  const char* group = "Data";
  add_row_flags(
      table, o,
      "write what the model says of the test rows, whose labels are not read: predict_results.txt in output_dir", {},
      group);
  auto tasks = glue_task_names();
  tasks.insert(tasks.begin(), "");
  table
      .add(&o.task_name, {"--task_name"},
           "a task of GLUE, as for run_glue.py: its columns of texts, its classes and its measures; without a data set "
           "its own, nyu-mll/glue",
           group)
      .choices(tasks);
  table.add(&o.columns.text_column, {"--text_column", "--text_column_name", "--text_column_names", "--sentence1_key"},
            "column of the text, or several (title,body), whose texts are joined; empty: the task's, or sentence1 "
            "beside sentence2, or the first usual name",
            group);
  table.add(&o.columns.text_delimiter, {"--text_column_delimiter"}, "between the texts of several columns", group)
      .only_with({{"--text_column", {config::kSet}}});
  table
      .add(&o.columns.pair_column, {"--text_pair_column", "--sentence2_key"},
           "column of a second text, which makes one row with the first", group)
      .only_with({{"--text_column", {config::kSet}}});
  table.add(&o.columns.label_column, {"--label_column", "--label_column_name"},
            "column of the label; empty: the first usual name", group);
  table
      .add(&o.problem_type, {"--problem_type"},
           "what a label is; auto: as config.json says, else by the labels (lists: several classes; numbers that are "
           "not "
           "all whole: a regression)",
           group)
      .choices({"auto", "single_label_classification", "multi_label_classification", "regression"});
  table.add(&o.do_regression, {"--do_regression"}, "the same as --problem_type regression", group);
  table.add(&o.label_separator, {"--label_separator"}, "between labels that stand in one text", group)
      .only_with({{"--problem_type", {"multi_label_classification"}}});
  table.add(&o.max_length, {"--max_length", "--max_seq_length"},
            "tokens of a text, or of two together, of which the longer is cut first; what was cut is counted", group);
  table.add(&o.pad_to_max_length, {"--pad_to_max_length"},
            "pad every batch to max_length; false: to its longest row (the same losses, less work)", group);
}

using config::Unused;

/// Of run_classification.py.
constexpr config::UnusedFlag kIdleOfTheScript[] = {
    {"--metric_name", Unused::kText,
     "accuracy and F1 are measured, of a regression the errors and the correlation, of a --task_name what GLUE does"},
    {"--shuffle_train_dataset", Unused::kBool, "training rows come in random order"},
    {"--shuffle_seed", Unused::kNumber, "--data_seed (or --seed) orders the rows"},
    {"--remove_columns", Unused::kText, "only the columns of the text and the label are read"},
};

constexpr config::RefusedFlag kRefusedOfTheScript[] = {
    {"--remove_splits", Unused::kText, "give the files themselves: --train_file, --validation_file, --test_file"},
    {"--train_split_name", Unused::kText, "the split is train; name another one's file with --train_file", "train"},
    {"--validation_split_name", Unused::kText,
     "the split is validation (or eval); name another one's file with --validation_file", "validation"},
};

/// "a,b" names two columns.
void part_columns(data::ReadOptions& columns, config::Problems& problems) {
  std::vector<std::string> names;
  for (const auto name : std::views::split(columns.text_column, ',')) names.emplace_back(name.begin(), name.end());
  if (names.size() < 2) return;
  problems.require(std::ranges::find(names, "") == names.end(),
                   "--text_column " + columns.text_column + ": there is no name before or after a comma",
                   "text_column");
  columns.text_column = names.front();
  columns.more_text_columns.assign(names.begin() + 1, names.end());
}

/// What the task says and no flag does.
void take_task(const GlueTask& task, ClassifyOptions& o, config::Problems& problems) {
  const std::string problem = task.labels.empty() ? "regression" : "single_label_classification";
  problems.require(o.problem_type == "auto" || o.problem_type == problem,
                   fmt::format("the labels of --task_name {} are of --problem_type {}, not {}; leave one out",
                               task.name, problem, o.problem_type),
                   "problem_type");
  o.problem_type = problem;
  if (o.columns.text_column.empty()) {
    o.columns.text_column = task.first;
    o.columns.pair_column = task.second;
  }
  if (task.name == "mnli") {
    o.validation_splits = "validation_matched," + o.validation_splits;
    if (o.predict.test_split == "test") o.predict.test_split = "test_matched,test";
  }
  const bool has_files = !o.validation_file.empty() || !o.predict.test_file.empty();
  if (!o.dataset_path.empty() || (has_files && !o.training.do_train)) return;
  o.dataset_path = "nyu-mll/glue";
  if (o.dataset_config.empty()) o.dataset_config = task.name;
}

void check(ClassifyOptions& o, config::Problems& problems) {
  if (o.do_regression && o.problem_type == "auto") o.problem_type = "regression";
  part_columns(o.columns, problems);
  if (const auto* task = find_glue_task(o.task_name)) take_task(*task, o, problems);
  check_row_flags(o, o.training, problems);
  problems.require(o.max_length >= 3, "--max_length must leave room for a token and the special ones: at least 3",
                   "max_length");
  problems.require(!o.label_separator.empty(), "--label_separator must not be empty", "label_separator");
  problems.require(!o.do_regression || o.problem_type == "regression",
                   "--do_regression and --problem_type " + o.problem_type + " exclude each other", "problem_type");
  problems.require(o.training.token_loss.kind == nn::TokenLoss::Kind::kNll,
                   "--loss_type dft is a loss of language models; leave it out", "loss_type");
  problems.require(o.training.neftune_noise_alpha == 0,
                   "--neftune_noise_alpha is built for tessera sft only; leave it out", "neftune_noise_alpha");
}

}  // namespace

ClassifyOptions::ClassifyOptions() {
  adapter.use_peft_lora = false;
  columns.takes_lists = columns.takes_pairs = true;
  training.output_dir = "tessera_classify";
  training.do_eval = true;
}

config::OptionTable classify_table(ClassifyOptions& o) {
  config::OptionTable table("tessera classify", "fine-tunes a classifier of texts, fully sharded");
  table.example("--model_name_or_path bert-base-uncased --dataset_name data/ --num_train_epochs 3 --output_dir out");
  add_model(table, o);
  add_data(table, o);
  add_script_flags(table);
  for (const auto& flag : kIdleOfTheScript) table.add_without_effect(flag);
  for (const auto& flag : kRefusedOfTheScript) table.add_refused(flag);
  train::add_training_arguments(table, o.training);
  add_job_flags(table, o, "Output");
  return table;
}

std::optional<ClassifyOptions> parse_classify(const std::vector<std::string>& args, std::ostream& out) {
  ClassifyOptions o;
  config::OptionTable table = classify_table(o);
  config::Problems problems;
  if (parse_task(table, args, problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  check(o, problems);
  check_job(o, table, /*measured=*/{}, problems);
  problems.throw_all();
  return o;
}

}  // namespace tessera::tasks
