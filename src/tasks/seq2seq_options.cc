#include <ostream>

#include "config/options.h"
#include "tasks/fsdp_options.h"
#include "tasks/seq2seq.h"
#include "train/idle_arguments.h"

namespace tessera::tasks {
namespace {

void add_model(config::OptionTable& table, Seq2SeqOptions& o) {
  const char* group = "Model";
  table.add(&o.model_name_or_path, {"--model_name_or_path", "--model"}, "folder of an encoder-decoder model (T5, mT5)",
            group);
  table.add(&o.tokenizer_name_or_path, {"--tokenizer_name_or_path", "--tokenizer_name"},
            "folder or file of the tokenizer, if not the model's folder", group);
  add_lora_flags(table, o.adapter, group);
}

void add_data(config::OptionTable& table, Seq2SeqOptions& o) {
  const char* group = "Data";
  table
      .add(&o.dataset_path, {"--dataset_path", "--dataset_name", "--train_file"},
           "file or folder: FinancialPhraseBank (sentence@label), JSONL, JSON or CSV", group)
      .required();
  table.add(&o.columns.text_column, {"--text_column"}, "column of the input text; empty: the first usual name", group);
  table.add(&o.columns.label_column, {"--label_column"}, "column of the text to predict; empty: the first usual name",
            group);
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
}

void add_training(config::OptionTable& table, Seq2SeqOptions& o) {
  const char* group = "Training";
  train::TrainerOptions& t = o.trainer;
  table.add(&o.do_train, {"--do_train"}, "false: only evaluate; nothing is written but metrics", group);
  table.add(&o.per_device_train_batch_size, {"--per_device_train_batch_size", "--batch_size"}, "rows a rank and batch",
            group);
  table.add(&o.per_device_eval_batch_size, {"--per_device_eval_batch_size"}, "rows a rank and batch", group)
      .only_with({{"--do_eval", {"true"}}});
  table.add(&t.gradient_accumulation_steps, {"--gradient_accumulation_steps"}, "batches an optimizer step", group);
  table.add(&t.learning_rate, {"--learning_rate", "--lr"}, "peak learning rate of AdamW", group);
  table.add(&o.weight_decay, {"--weight_decay"}, "decoupled weight decay", group);
  table.add(&o.adam_beta1, {"--adam_beta1"}, "", group);
  table.add(&o.adam_beta2, {"--adam_beta2"}, "", group);
  table.add(&o.adam_epsilon, {"--adam_epsilon"}, "", group);
  table.add(&t.max_grad_norm, {"--max_grad_norm"}, "clip the global gradient norm; 0: off", group);
  table
      .add(&t.num_train_epochs, {"--num_train_epochs", "--num_epochs", "--epochs"}, "passes over the training rows",
           group)
      .idle_with({"--max_steps", {config::kSet}});
  table.add(&t.max_steps, {"--max_steps"}, "optimizer steps; above 0 it overrides the epochs", group);
  table.add(&t.lr_scheduler_type, {"--lr_scheduler_type"}, "shape of the schedule", group)
      .choices({"linear", "cosine", "constant", "constant_with_warmup"});
  table.add(&t.warmup_steps, {"--warmup_steps"}, "steps of linear warm-up", group)
      .idle_with({"--lr_scheduler_type", {"constant"}});
  table.add(&t.warmup_ratio, {"--warmup_ratio"}, "the same as a part of all steps", group)
      .idle_with({"--lr_scheduler_type", {"constant"}})
      .idle_with({"--warmup_steps", {config::kSet}});
  table.add(&o.seed, {"--seed"}, "of adapters, dropout and the order of rows", group);
  table.add(&o.bf16, {"--bf16"}, "compute in bfloat16 (overrides the launcher's mixed_precision)", group);
  table.add(&o.fp16, {"--fp16"}, "compute in float16 with a gradient scaler", group);
  table
      .add(&o.device, {"--device"}, "what computes: auto and cpu the processor, cuda a GPU (not tried on one yet)",
           group)
      .choices({"auto", "cpu", "cuda"});
  table.add_enum(&o.gather, gather_forms(), {"--gather"}, "how sharded units become readable", group);
}

void add_output(config::OptionTable& table, Seq2SeqOptions& o) {
  const char* group = "Evaluation and output";
  table.add(&o.checkpoints.output_dir, {"--output_dir"}, "folder of the adapter or model", group);
  table.add(&o.checkpoints.overwrite_output_dir, {"--overwrite_output_dir"}, "replace a result that is already there",
            group);
  train::add_checkpoint_options(table, o.checkpoints, train::Strategies::kPlain, "Checkpoints");
  table.add(&o.logging_steps, {"--logging_steps"}, "steps between lines of the metrics file; 0: none", group);
  table.add(&o.do_eval, {"--do_eval"}, "evaluate on held-out rows after each epoch", group);
  table.add(&o.max_eval_steps, {"--max_eval_steps"}, "batches of an evaluation; 0: all", group)
      .only_with({{"--do_eval", {"true"}}});
  table.add(&o.metrics_file, {"--metrics_file"}, "JSON lines; default: metrics.jsonl in output_dir", group);
  table.add(&o.save_model, {"--save_model"}, "save the adapter (or model) at the end", group);
  table.add(&o.disable_tqdm, {"--disable_tqdm"}, "no progress bars", group);
  table.add(&o.print_model, {"--print_model"}, "print the sharded model before training; none: unless it is long",
            group);
}

void check(Seq2SeqOptions& o, config::Problems& problems) {
  problems.require(o.per_device_train_batch_size > 0, "--per_device_train_batch_size must be at least 1",
                   "per_device_train_batch_size");
  problems.require(o.per_device_eval_batch_size > 0, "--per_device_eval_batch_size must be at least 1",
                   "per_device_eval_batch_size");
  problems.require(o.trainer.gradient_accumulation_steps > 0, "--gradient_accumulation_steps must be at least 1",
                   "gradient_accumulation_steps");
  problems.require(o.max_length >= 2, "--max_length must leave room for a token and </s>: at least 2", "max_length");
  problems.require(!o.max_target_length || *o.max_target_length >= 1, "--max_target_length must be at least 1",
                   "max_target_length");
  check_lora_flags(o.adapter, problems);
  train::check_checkpoint_options(o.checkpoints, problems);
  if (!o.do_train) train::check_evaluates_only(o.checkpoints, o.do_eval, "--do_eval", problems);
  problems.require(o.trainer.learning_rate >= 0, "--learning_rate must not be negative", "learning_rate");
  problems.require(o.trainer.max_grad_norm >= 0, "--max_grad_norm must not be negative; 0 turns clipping off",
                   "max_grad_norm");
  problems.require(o.trainer.num_train_epochs > 0 || o.trainer.max_steps > 0, "--num_train_epochs must be positive",
                   "num_train_epochs");
  problems.require(o.trainer.warmup_steps >= 0, "--warmup_steps must not be negative", "warmup_steps");
  problems.require(o.trainer.warmup_ratio >= 0 && o.trainer.warmup_ratio <= 1, "--warmup_ratio must be in [0, 1]",
                   "warmup_ratio");
  if (o.validation_split >= 1) o.validation_split /= 100;  // the Trainer's scripts give percent
  problems.require(o.validation_split >= 0 && o.validation_split < 1,
                   "--validation_split must be in [0, 1), or a percentage below 100", "validation_split");
  problems.attempt([&] {
    const config::AccelerateConfig launch = launch_settings(o.bf16, o.fp16);
    o.trainer.scale_loss = launch.mixed_precision == config::MixedPrecision::kFp16;
    (void)compute_device(o.device, launch);
  });
}

}  // namespace

config::OptionTable seq2seq_table(Seq2SeqOptions& options) {
  config::OptionTable table("tessera seq2seq", "fine-tunes an encoder-decoder model on pairs of texts, fully sharded");
  add_model(table, options);
  add_data(table, options);
  add_training(table, options);
  add_output(table, options);
  train::add_idle_training_arguments(table);
  return table;
}

std::optional<Seq2SeqOptions> parse_seq2seq(const std::vector<std::string>& args, std::ostream& out) {
  Seq2SeqOptions options;
  options.checkpoints.output_dir = "tessera_seq2seq";
  options.checkpoints.save_strategy = train::Interval::kNo;  // the guide's program writes its result only
  config::OptionTable table = seq2seq_table(options);
  config::Problems problems;
  if (table.parse(args, problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  check(options, problems);
  problems.throw_all();
  options.notes = table.notes();
  return options;
}

}  // namespace tessera::tasks
