#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <ostream>

#include "base/cpu_features.h"
#include "config/options.h"
#include "tasks/fsdp_options.h"
#include "tasks/summarize.h"
#include "train/idle_arguments.h"

namespace tessera::tasks {
namespace {

void add_summarize_inputs(config::OptionTable& table, SummarizeOptions& o) {
  table.add(&o.model_name_or_path, {"--model_name_or_path", "--model_name", "--model"}, "folder of a T5 model",
            "Model");
  table.add(&o.tokenizer_name_or_path, {"--tokenizer_name_or_path", "--tokenizer_name"},
            "folder or file of the tokenizer, if not the model's folder", "Model");
  const char* group = "Data";
  table.add(&o.data.data_dir, {"--data_dir", "--dataset_path"},
            "folder of wikihowAll.csv or wikihowSep.csv and of the lists of titles (all_train.txt, all_val.txt, ...)",
            group);
  using data::WikiHowPart;
  table.add_enum(&o.data.part, {{"all", WikiHowPart::kAll}, {"sep", WikiHowPart::kSep}},
                 {"--dataset_part", "--dataset_config_name"}, "articles, or their paragraphs", group);
  table.add(&o.data.train_rows, {"--train_rows", "--max_train_samples"}, "rows to train on; 0: all", group);
  table.add(&o.data.validation_rows, {"--val_rows", "--max_eval_samples"}, "rows to validate on; 0: all", group)
      .only_with({{"--run_validation", {"true"}}});
  table.add(&o.max_source_length, {"--max_source_length", "--max_length"}, "tokens of a text; longer ones are cut",
            group);
  table.add(&o.max_target_length, {"--max_target_length"}, "tokens of a summary; longer ones are cut", group);
  table.add(&o.pad_to_max_length, {"--pad_to_max_length"},
            "pad every batch to these lengths; false: to its longest row (the same losses, less work)", group);
}

void add_summarize_training(config::OptionTable& table, SummarizeOptions& o) {
  const char* group = "Training";
  table.add(&o.do_train, {"--do_train"}, "false: only validate; nothing is written but metrics", group);
  table.add(&o.batch_size, {"--batch_size"}, "rows a rank and batch", group);
  table.add(&o.test_batch_size, {"--test_batch_size"}, "the same for validation", group)
      .only_with({{"--run_validation", {"true"}}});
  table.add(&o.epochs, {"--epochs"}, "passes over the training rows", group);
  table.add(&o.lr, {"--lr", "--learning_rate"}, "learning rate of AdamW", group);
  table.add(&o.gamma, {"--gamma"}, "the rate is multiplied by this after each epoch", group);
  table.add(&o.seed, {"--seed"}, "of dropout and the order of rows", group);
  table.add(&o.bf16, {"--bf16"}, "compute in bfloat16; unset: as launched, else where the processor has it", group);
  table.add(&o.fp16, {"--fp16"}, "compute in float16 with a gradient scaler", group);
  table.add_enum(&o.gather, gather_forms(), {"--gather"}, "how sharded units become readable", group);
  table
      .add(&o.device, {"--device"}, "what computes: auto and cpu the processor, cuda a GPU (not tried on one yet)",
           group)
      .choices({"auto", "cpu", "cuda"});
  table.add(&o.no_cuda, {"--no_cuda", "--use_cpu"}, "the same as --device cpu, which auto means so far", group);
}

void add_summarize_output(config::OptionTable& table, SummarizeOptions& o) {
  const char* group = "Evaluation and output";
  table.add(&o.run_validation, {"--run_validation"}, "validate after each epoch", group);
  table.add(&o.track_memory, {"--track_memory"}, "print each rank's memory after each epoch", group);
  table.add(&o.save_model, {"--save_model"},
            "save the model when its validation loss is the lowest so far (without validation: at the end)", group);
  table
      .add(&o.save_torch_file, {"--save_torch_file"},
           "beside the folder with model.safetensors write a .pt file, as the tutorial does", group)
      .only_with({{"--save_model", {"true"}}});
  table.add(&o.checkpoints.output_dir, {"--output_dir"}, "where T5-model-<date>-<epoch>-<loss> is written", group);
  train::add_checkpoint_options(table, o.checkpoints, train::Strategies::kPlain, "Checkpoints");
  table.add(&o.metrics_file, {"--metrics_file"}, "JSON lines; default: metrics.jsonl in output_dir", group);
  table.add(&o.disable_tqdm, {"--disable_tqdm"}, "no progress bars", group);
  table.add(&o.print_model, {"--print_model"}, "print the sharded model before training", group);
}

void check_summarize(const SummarizeOptions& o, config::Problems& problems) {
  train::check_checkpoint_options(o.checkpoints, problems);
  if (!o.do_train) train::check_evaluates_only(o.checkpoints, o.run_validation, "--run_validation", problems);
  problems.require(!o.no_cuda || o.device != "cuda", "--no_cuda and --device cuda exclude each other", "device");
  problems.require(o.batch_size > 0, "--batch_size must be at least 1", "batch_size");
  problems.require(o.test_batch_size > 0, "--test_batch_size must be at least 1", "test_batch_size");
  problems.require(o.epochs > 0, "--epochs must be at least 1", "epochs");
  problems.require(o.lr >= 0, "--lr must not be negative", "lr");
  problems.require(o.gamma > 0, "--gamma must be above 0", "gamma");
  problems.require(o.data.train_rows >= 0, "--train_rows must not be negative", "train_rows");
  problems.require(o.data.validation_rows >= 0, "--val_rows must not be negative", "val_rows");
  problems.require(o.max_source_length >= 2, "--max_source_length must leave room for a token and </s>: at least 2",
                   "max_source_length");
  problems.require(o.max_target_length >= 2, "--max_target_length must leave room for a token and </s>: at least 2",
                   "max_target_length");
  problems.attempt([&] { (void)compute_device(o.device, launch_settings(o.bf16, o.fp16)); });
}

}  // namespace

config::OptionTable summarize_table(SummarizeOptions& options) {
  config::OptionTable table("tessera summarize", "fine-tunes T5 on WikiHow to write summaries, fully sharded");
  add_summarize_inputs(table, options);
  add_summarize_training(table, options);
  add_summarize_output(table, options);
  train::add_idle_training_arguments(table);
  return table;
}

std::optional<SummarizeOptions> parse_summarize(const std::vector<std::string>& args, std::ostream& out) {
  SummarizeOptions options;
  options.checkpoints.output_dir = ".";
  options.checkpoints.save_strategy = train::Interval::kNo;  // the tutorial's program writes its models only
  config::OptionTable table = summarize_table(options);
  config::Problems problems;
  if (table.parse(args, problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  check_summarize(options, problems);
  problems.throw_all();
  options.notes = table.notes();
  return options;
}

config::AccelerateConfig summarize_settings(const SummarizeOptions& o, std::vector<std::string>& notes) {
  const auto native = native_bfloat16();
  std::optional<bool> bf16 = o.bf16;
  const char* launched = std::getenv("ACCELERATE_MIXED_PRECISION");
  const bool is_open = !o.bf16 && !o.fp16.value_or(false) && (launched == nullptr || *launched == '\0');
  if (is_open) bf16 = !native.empty();
  config::AccelerateConfig settings = launch_settings(bf16, o.fp16);
  const bool computes_in_bf16 = settings.mixed_precision == config::MixedPrecision::kBf16;
  notes.push_back(fmt::format("bf16: {}; mixed precision: {}{}",
                              native.empty()
                                  ? "this processor has no instructions for it"
                                  : fmt::format("this processor has it natively ({})", fmt::join(native, ", ")),
                              config::name_of(settings.mixed_precision),
                              is_open && computes_in_bf16 ? " (--bf16 false computes in fp32)" : ""));
  if (settings.fsdp.auto_wrap_policy == config::WrapPolicy::kNoWrap) {
    settings.fsdp.auto_wrap_policy = config::WrapPolicy::kTransformerBased;
  }
  return settings;
}

}  // namespace tessera::tasks
