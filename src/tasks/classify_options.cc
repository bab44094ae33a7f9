#include <ostream>

#include "config/options.h"
#include "tasks/classify.h"

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
  table.add(&o.columns.text_column, {"--text_column", "--text_column_name", "--text_column_names"},
            "column of the text; empty: the first usual name", group);
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
  table.add(&o.max_length, {"--max_length", "--max_seq_length"}, "tokens of a text; longer ones are cut, and counted",
            group);
  table.add(&o.pad_to_max_length, {"--pad_to_max_length"},
            "pad every batch to max_length; false: to its longest row (the same losses, less work)", group);
}

using config::Unused;

/// Of run_classification.py.
constexpr config::UnusedFlag kIdleOfTheScript[] = {
    {"--metric_name", Unused::kText, "accuracy and F1 are measured, of a regression the errors and the correlation"},
    {"--shuffle_train_dataset", Unused::kBool, "training rows come in random order"},
    {"--shuffle_seed", Unused::kNumber, "--data_seed (or --seed) orders the rows"},
    {"--remove_columns", Unused::kText, "only the columns of the text and the label are read"},
};

constexpr config::RefusedFlag kRefusedOfTheScript[] = {
    {"--text_column_delimiter", Unused::kText,
     "one column holds the text; join several in the file and name the result with --text_column"},
    {"--remove_splits", Unused::kText, "give the files themselves: --train_file, --validation_file, --test_file"},
    {"--train_split_name", Unused::kText, "the split is train; name another one's file with --train_file", "train"},
    {"--validation_split_name", Unused::kText,
     "the split is validation (or eval); name another one's file with --validation_file", "validation"},
};

void check(ClassifyOptions& o, config::Problems& problems) {
  check_row_flags(o, o.training, problems);
  problems.require(o.max_length >= 3, "--max_length must leave room for a token and the special ones: at least 3",
                   "max_length");
  problems.require(!o.label_separator.empty(), "--label_separator must not be empty", "label_separator");
  problems.require(!o.do_regression || o.problem_type == "auto" || o.problem_type == "regression",
                   "--do_regression and --problem_type " + o.problem_type + " exclude each other", "problem_type");
  if (o.do_regression) o.problem_type = "regression";
  problems.require(o.training.token_loss.kind == nn::TokenLoss::Kind::kNll,
                   "--loss_type dft is a loss of language models; leave it out", "loss_type");
  problems.require(o.training.neftune_noise_alpha == 0,
                   "--neftune_noise_alpha is built for tessera sft only; leave it out", "neftune_noise_alpha");
}

}  // namespace

ClassifyOptions::ClassifyOptions() {
  adapter.use_peft_lora = false;
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
  if (table.parse(with_method_keys(args), problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  check(o, problems);
  check_job(o, table, /*measured=*/{}, problems);
  problems.throw_all();
  return o;
}

}  // namespace tessera::tasks
