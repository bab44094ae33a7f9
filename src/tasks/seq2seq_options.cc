#include <ostream>

#include "config/options.h"
#include "tasks/pair_training.h"
#include "tasks/seq2seq.h"

namespace tessera::tasks {
namespace {

void add_model(config::OptionTable& table, Seq2SeqOptions& o) {
  const char* group = "Model";
  table.add(&o.model_name_or_path, {"--model_name_or_path", "--model"},
            "folder, or name on the Hub, of an encoder-decoder model (T5, mT5)", group);
  table.add(&o.tokenizer_name_or_path, {"--tokenizer_name_or_path", "--tokenizer_name"},
            "folder or file of the tokenizer, if not the model's folder", group);
  add_lora_flags(table, o.adapter, group);
  refuse_adapter_list(table);
  add_quant_flags(table, o.quant, "Packed weights");
}

void add_data(config::OptionTable& table, Seq2SeqOptions& o) {
  const char* group = "Data";
  table
      .add(&o.dataset_path, {"--dataset_path", "--dataset_name", "--train_file"},
           "file, folder or name on the Hub: FinancialPhraseBank (sentence@label), JSONL, JSON, CSV or Parquet", group)
      .required();
  table.add(&o.dataset_config, {"--dataset_config", "--dataset_config_name"},
            "one of several configurations of the data set: as its card names it, or a folder", group);
  table.add(&o.columns.text_column, {"--text_column"}, "column of the input text; empty: the first usual name", group);
  table.add(&o.columns.label_column, {"--label_column", "--summary_column"},
            "column of the text to predict; empty: the first usual name", group);
  table.add(&o.columns.label_names, {"--label_names"}, "names of integer labels 0, 1, ...", group);
  using data::FileEncoding;
  table.add_enum(&o.columns.encoding,
                 {{"auto", FileEncoding::kAuto}, {"utf-8", FileEncoding::kUtf8}, {"iso-8859-1", FileEncoding::kLatin1}},
                 {"--encoding"}, "of text files; auto: UTF-8, or ISO-8859-1 for a .txt file that is not UTF-8", group);
  table.add(&o.max_length, {"--max_length", "--max_source_length", "--max_seq_length"},
            "tokens of an input; longer ones are cut", group);
  table.add(&o.max_target_length, {"--max_target_length", "--label_max_length"}, "tokens of a label; none: the longest",
            group);
  table.add(&o.validation_split, {"--validation_split", "--validation_split_percentage"},
            "part of the rows held out (a fraction, or percent from 1 up) when the data has no validation file", group);
  table.add(&o.max_train_samples, {"--max_train_samples"}, "use only so many training rows; 0: all", group);
  table.add(&o.pad_to_max_length, {"--pad_to_max_length"},
            "pad every batch to max_length; false: to its longest row (the same losses, less work)", group);
  table.add(&o.max_eval_steps, {"--max_eval_steps"}, "batches of an evaluation; 0: all", group)
      .only_with({{"--eval_strategy", {"steps", "epoch"}}, {"--do_train", {"false"}}});
}

void check(Seq2SeqOptions& o, config::Problems& problems) {
  problems.require(o.max_length >= 2, "--max_length must leave room for a token and </s>: at least 2", "max_length");
  problems.require(!o.max_target_length || *o.max_target_length >= 1, "--max_target_length must be at least 1",
                   "max_target_length");
  if (o.validation_split >= 1) o.validation_split /= 100;  // the Trainer's scripts give percent
  problems.require(o.validation_split >= 0 && o.validation_split < 1,
                   "--validation_split must be in [0, 1), or a percentage below 100", "validation_split");
}

}  // namespace

/// The defaults of the guide's program.
Seq2SeqOptions::Seq2SeqOptions() {
  model_name_or_path = "t5-base";
  training.output_dir = "tessera_seq2seq";
  training.num_train_epochs = 1;
  training.learning_rate = 1e-3;
  training.weight_decay = 0.01;
  training.decays_all = true;
  training.max_grad_norm = 0;
  training.logging_steps = 10;
  training.do_eval = true;
  training.save_strategy = train::Interval::kNo;  // it writes its result only
}

config::OptionTable seq2seq_table(Seq2SeqOptions& options) {
  config::OptionTable table("tessera seq2seq", "fine-tunes an encoder-decoder model on pairs of texts, fully sharded");
  table.example("--model_name_or_path t5-base --train_file train.jsonl --use_peft_lora true --output_dir out");
  add_model(table, options);
  add_data(table, options);
  train::add_training_arguments(table, options.training);
  add_job_flags(table, options, "Output");
  return table;
}

std::optional<Seq2SeqOptions> parse_seq2seq(const std::vector<std::string>& args, std::ostream& out) {
  Seq2SeqOptions options;
  config::OptionTable table = seq2seq_table(options);
  config::Problems problems;
  if (table.parse(with_method_keys(args), problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  check_job(options, table, pair_metrics(/*with_texts=*/true), problems);
  check_pairs(options, problems);
  check(options, problems);
  problems.throw_all();
  return options;
}

}  // namespace tessera::tasks
