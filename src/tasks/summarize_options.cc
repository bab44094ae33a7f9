#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <ostream>

#include "base/cpu_level.h"
#include "config/options.h"
#include "tasks/fsdp_options.h"
#include "tasks/pair_training.h"
#include "tasks/parse_task.h"
#include "tasks/summarize.h"

namespace tessera::tasks {
namespace {

void add_summarize_inputs(config::OptionTable& table, SummarizeOptions& o) {
  table.add(&o.model_name_or_path, {"--model_name_or_path", "--model_name", "--model"},
            "folder, or name on the Hub, of a T5 model", "Model");
  table.add(&o.tokenizer_name_or_path, {"--tokenizer_name_or_path", "--tokenizer_name"},
            "folder or file of the tokenizer, if not the model's folder", "Model");
  add_lora_flags(table, o.adapter, "Model");
  refuse_adapter_list(table);
  add_quant_flags(table, o.quant, "Packed weights");
  const char* group = "Data";
  table.add(&o.data.data_dir, {"--data_dir", "--dataset_path"},
            "folder of wikihowAll.csv or wikihowSep.csv and of the lists of titles (all_train.txt, all_val.txt, ...)",
            group);
  using data::WikiHowPart;
  table.add_enum(&o.data.part, {{"all", WikiHowPart::kAll}, {"sep", WikiHowPart::kSep}},
                 {"--dataset_part", "--dataset_config_name"}, "articles, or their paragraphs", group);
  table.add(&o.data.train_rows, {"--train_rows", "--max_train_samples"}, "rows to train on; 0: all", group);
  table.add(&o.data.validation_rows, {"--val_rows", "--max_eval_samples"}, "rows to validate on; 0: all", group)
      .only_with({{"--eval_strategy", {"steps", "epoch"}}, {"--do_train", {"false"}}});
  table.add(&o.max_source_length, {"--max_source_length", "--max_length"}, "tokens of a text; longer ones are cut",
            group);
  table.add(&o.max_target_length, {"--max_target_length"}, "tokens of a summary; longer ones are cut", group);
  table.add(&o.pad_to_max_length, {"--pad_to_max_length"},
            "pad every batch to these lengths; false: to its longest row (the same losses, less work)", group);
  add_generate_flags(table, o.generate, "Evaluation");
}

void add_summarize_output(config::OptionTable& table, SummarizeOptions& o) {
  const char* group = "Output";
  table
      .add(&o.gamma, {"--gamma"},
           "the rate is multiplied by this after each epoch, unless --lr_scheduler_type is given", group)
      .idle_with({"--lr_scheduler_type", {config::kSet}});
  table.add(&o.track_memory, {"--track_memory"}, "print each rank's memory after each epoch", group);
  table
      .add(&o.save_torch_file, {"--save_torch_file"},
           "beside the folder with model.safetensors write a .pt file, as the tutorial does", group)
      .only_with({{"--save_model", {"true"}}});
  add_job_flags(table, o, group);
}

void check_summarize(SummarizeOptions& o, const config::OptionTable& table, config::Problems& problems) {
  o.falls_by_gamma = !table.given("--lr_scheduler_type") && !table.given("--lr_scheduler_kwargs");
  if (o.falls_by_gamma) o.training.lr_scheduler_kwargs = R"({"step_size": 1})";  // until the rows are counted
  problems.require(o.gamma > 0, "--gamma must be above 0", "gamma");
  problems.require(o.data.train_rows >= 0, "--train_rows must not be negative", "train_rows");
  problems.require(o.data.validation_rows >= 0, "--val_rows must not be negative", "val_rows");
  problems.require(o.max_source_length >= 2, "--max_source_length must leave room for a token and </s>: at least 2",
                   "max_source_length");
  check_generate_flags(o.generate, problems);
  problems.require(o.max_target_length >= 2, "--max_target_length must leave room for a token and </s>: at least 2",
                   "max_target_length");
}

std::vector<std::string> summarize_metrics(const GenerateFlags& flags) {
  if (flags.predict_with_generate) return text_metrics(flags);
  return {"eval_loss", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second"};
}

}  // namespace

/// The defaults of the tutorial's program.
SummarizeOptions::SummarizeOptions() {
  model_name_or_path = "t5-base";
  adapter.use_peft_lora = false;
  print_model = false;
  training.output_dir = ".";
  training.per_device_train_batch_size = training.per_device_eval_batch_size = 4;
  training.num_train_epochs = 2;
  training.learning_rate = 0.002;
  training.weight_decay = 0.01;
  training.decays_all = true;
  training.max_grad_norm = 0;
  training.lr_scheduler_type = "step";
  training.seed = 1;
  training.do_eval = true;
  training.logging_steps = 1;
  training.save_strategy = train::Interval::kNo;  // it writes its models only
}

config::OptionTable summarize_table(SummarizeOptions& options) {
  config::OptionTable table("tessera summarize", "fine-tunes T5 on WikiHow to write summaries, fully sharded");
  table.example("--model_name_or_path t5-base --dataset_path wikihowAll.csv --output_dir out");
  add_summarize_inputs(table, options);
  train::add_training_arguments(table, options.training);
  add_summarize_output(table, options);
  return table;
}

std::optional<SummarizeOptions> parse_summarize(const std::vector<std::string>& args, std::ostream& out) {
  SummarizeOptions options;
  config::OptionTable table = summarize_table(options);
  config::Problems problems;
  if (parse_task(table, args, problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  check_summarize(options, table, problems);
  check_job(options, table, summarize_metrics(options.generate), problems);
  check_pairs(options, problems);
  problems.throw_all();
  return options;
}

config::AccelerateConfig summarize_settings(const SummarizeOptions& o, std::vector<std::string>& notes) {
  const auto native = native_bfloat16();
  std::optional<bool> bf16 = o.training.bf16;
  const char* launched = std::getenv("ACCELERATE_MIXED_PRECISION");
  const bool is_open =
      !o.training.bf16 && !o.training.fp16.value_or(false) && (launched == nullptr || *launched == '\0');
  if (is_open) bf16 = !native.empty();
  config::AccelerateConfig settings = launch_settings(bf16, o.training.fp16);
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
