#include <fmt/format.h>

#include <ostream>

#include "config/options.h"
#include "tasks/pair_training.h"
#include "tasks/parse_task.h"
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
  const std::vector<config::Need> evaluated = {
      {"--eval_strategy", {"steps", "epoch"}}, {"--do_train", {"false"}}, {"--do_predict", {"true"}}};
  add_row_flags(
      table, o,
      "evaluate the test rows, too: predict_results.json in output_dir, with --predict_with_generate also the "
      "texts, generated_predictions.txt",
      evaluated, group);
  table.add(&o.columns.text_column, {"--text_column"}, "column of the input text; empty: the first usual name", group);
  table.add(&o.columns.label_column, {"--label_column", "--summary_column"},
            "column of the text to predict; empty: the first usual name", group);
  table.add(&o.source_lang, {"--source_lang"},
            "of rows {\"translation\": {\"en\": ..., \"de\": ...}} the language of the input text (en, en_XX)", group);
  table.add(&o.target_lang, {"--target_lang"}, "and that of the text to predict", group);
  table.add(&o.source_prefix, {"--source_prefix"}, "put before every input text: 'summarize: '", group);
  table.add(&o.max_length, {"--max_length", "--max_source_length", "--max_seq_length"},
            "tokens of an input; longer ones are cut", group);
  table.add(&o.max_target_length, {"--max_target_length", "--label_max_length"}, "tokens of a label; none: the longest",
            group);
  table
      .add(&o.val_max_target_length, {"--val_max_target_length"},
           "the same in evaluations, and the length of generated texts; none: --max_target_length", group)
      .only_with(evaluated);
  table.add(&o.pad_to_max_length, {"--pad_to_max_length"},
            "pad every batch to max_length; false: to its longest row (the same losses, less work)", group);
  table.add(&o.ignore_pad_token_for_loss, {"--ignore_pad_token_for_loss"},
            "must be true: padding is no part of the loss", group);
  table.add(&o.max_eval_steps, {"--max_eval_steps"}, "batches of an evaluation; 0: all", group).only_with(evaluated);
  add_generate_flags(table, o.generate, "Evaluation");
  table
      .add_enum(&o.generate.metric,
                {{"auto", TextMetric::kAuto}, {"rouge", TextMetric::kRouge}, {"sacrebleu", TextMetric::kBleu}},
                {"--metric_name"},
                "of generated texts; auto: sacrebleu with --source_lang or a --source_prefix that begins with "
                "\"translate \", else rouge",
                "Evaluation")
      .only_with({{"--predict_with_generate", {"true"}}});
}

using config::Unused;

/// Of run_summarization.py, run_translation.py and Seq2SeqTrainingArguments.
constexpr config::UnusedFlag kIdleOfTheScripts[] = {
    {"--lang", Unused::kText, "no model here has a tokenizer that is told the language"},
    {"--resize_position_embeddings", Unused::kBool, "T5's positions are relative: there is no table to resize"},
};

constexpr config::RefusedFlag kRefusedOfTheScripts[] = {
    {"--forced_bos_token", Unused::kText,
     "it is for models of several languages (mBART), which are not built; forced_bos_token_id in the model's "
     "generation_config.json is followed"},
    {"--generation_config", Unused::kText, "the generation_config.json in the model's folder counts; change it there"},
    {"--sortish_sampler", Unused::kBool, "training rows come in random order; see --train_sampling_strategy"},
};

/// As run_translation.py: a code's country (en_XX) is left out.
void check_languages(Seq2SeqOptions& o, config::Problems& problems) {
  if (o.source_lang.empty() && o.target_lang.empty()) return;
  problems.require(!o.source_lang.empty() && !o.target_lang.empty(), "--source_lang and --target_lang go together",
                   "source_lang");
  problems.require(o.columns.text_column.empty() && o.columns.label_column.empty(),
                   "--source_lang and --target_lang take the place of --text_column and --label_column; give one pair",
                   "text_column");
  o.columns.inside = "translation";
  o.columns.text_column = o.source_lang.substr(0, o.source_lang.find('_'));
  o.columns.label_column = o.target_lang.substr(0, o.target_lang.find('_'));
}

/// A line says what is measured and why.
void choose_metric(Seq2SeqOptions& o) {
  const bool translates = o.source_prefix.starts_with("translate ");  // T5's own prefix
  std::string why = "--metric_name";
  if (o.generate.metric == TextMetric::kAuto) {
    const bool is_bleu = !o.source_lang.empty() || translates;
    o.generate.metric = is_bleu ? TextMetric::kBleu : TextMetric::kRouge;
    why = !o.source_lang.empty() ? "rows are translations: --source_lang"
          : translates           ? "--source_prefix begins with \"translate \"; --metric_name rouge measures ROUGE"
                                 : "no flag says that they are translations; --metric_name sacrebleu measures BLEU";
  }
  if (o.generate.predict_with_generate)
    o.notes.push_back(fmt::format("generated texts are measured by {} ({})",
                                  o.generate.metric == TextMetric::kBleu ? "BLEU" : "ROUGE", why));
}

void check(Seq2SeqOptions& o, config::Problems& problems) {
  check_row_flags(o, o.training, problems);
  check_languages(o, problems);
  choose_metric(o);
  problems.require(o.max_length >= 2, "--max_length must leave room for a token and </s>: at least 2", "max_length");
  problems.require(!o.max_target_length || *o.max_target_length >= 1, "--max_target_length must be at least 1",
                   "max_target_length");
  problems.require(!o.val_max_target_length || *o.val_max_target_length >= 1,
                   "--val_max_target_length must be at least 1", "val_max_target_length");
  problems.require(o.ignore_pad_token_for_loss,
                   "--ignore_pad_token_for_loss false is not supported: padding as a part of the loss would make it "
                   "depend on which rows share a batch; leave the flag out",
                   "ignore_pad_token_for_loss");
  check_generate_flags(o.generate, problems);
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
  generate.metric = TextMetric::kAuto;
}

config::OptionTable seq2seq_table(Seq2SeqOptions& options) {
  config::OptionTable table("tessera seq2seq", "fine-tunes an encoder-decoder model on pairs of texts, fully sharded");
  table.example("--model_name_or_path t5-base --train_file train.jsonl --use_peft_lora true --output_dir out");
  add_model(table, options);
  add_data(table, options);
  add_script_flags(table);
  for (const auto& flag : kIdleOfTheScripts) table.add_without_effect(flag);
  for (const auto& flag : kRefusedOfTheScripts) table.add_refused(flag);
  train::add_training_arguments(table, options.training);
  add_job_flags(table, options, "Output");
  return table;
}

std::optional<Seq2SeqOptions> parse_seq2seq(const std::vector<std::string>& args, std::ostream& out) {
  Seq2SeqOptions options;
  config::OptionTable table = seq2seq_table(options);
  config::Problems problems;
  if (parse_task(table, args, problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  check(options, problems);
  check_job(options, table, text_metrics(options.generate), problems);
  check_pairs(options, problems);
  problems.throw_all();
  return options;
}

}  // namespace tessera::tasks
