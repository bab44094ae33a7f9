#include "train/training_arguments.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/nearest.h"
#include "tessera/base/error.h"
#include "tessera/optim/factory.h"

namespace tessera::train {
namespace {

using config::Unused;

/// Flags of TrainingArguments that change nothing here, and why: users' commands run as they are, and are told.
constexpr config::UnusedFlag kWithoutEffect[] = {
    {"--dataloader_num_workers", Unused::kNumber, "batches are cut from a mapped file; no worker processes are needed"},
    {"--dataloader_prefetch_factor", Unused::kNumber, "batches are cut from a mapped file"},
    {"--dataloader_pin_memory", Unused::kBool, "there is no copy to a device"},
    {"--dataloader_persistent_workers", Unused::kBool, "there are no worker processes"},
    {"--ddp_backend", Unused::kText, "the launcher chooses how ranks communicate"},
    {"--ddp_timeout", Unused::kNumber, "a lost rank is noticed within a second"},
    {"--ddp_find_unused_parameters", Unused::kBool, "unused parameters need no search"},
    {"--ddp_bucket_cap_mb", Unused::kNumber, "units are the buckets"},
    {"--local_rank", Unused::kNumber, "the launcher says which rank this is"},
    {"--use_ipex", Unused::kBool, "kernels for this processor are built in"},
    {"--jit_mode_eval", Unused::kBool, "nothing is traced"},
    {"--torch_compile", Unused::kBool, "kernels are fused already"},
    {"--torch_compile_backend", Unused::kText, "kernels are fused already"},
    {"--torch_compile_mode", Unused::kText, "kernels are fused already"},
    {"--tf32", Unused::kBool, "a format of GPUs"},
    {"--remove_unused_columns", Unused::kBool, "only the columns that are needed are read"},
    {"--group_by_length", Unused::kBool, "rows without padding make it needless"},
    {"--length_column_name", Unused::kText, "lengths are counted"},
    {"--skip_memory_metrics", Unused::kBool, "memory is always reported"},
    {"--auto_find_batch_size", Unused::kBool, "the batch size stays as given"},
    {"--full_determinism", Unused::kBool, "runs always give the same bits"},
    {"--average_tokens_across_devices", Unused::kBool, "the loss is always the mean over the tokens of all ranks"},
    {"--include_tokens_per_second", Unused::kBool, "always measured"},
    {"--include_num_input_tokens_seen", Unused::kText, "always counted"},
    {"--use_liger_kernel", Unused::kBool, "kernels are fused already"},
    {"--torch_empty_cache_steps", Unused::kNumber, "memory is reused"},
    {"--eval_accumulation_steps", Unused::kNumber, "predictions are not kept"},
    {"--prediction_loss_only", Unused::kBool, "evaluation computes losses"},
    {"--save_safetensors", Unused::kBool, "always"},
    {"--save_on_each_node", Unused::kBool, "ranks of one machine share a folder"},
    {"--logging_nan_inf_filter", Unused::kBool, "a loss that is not finite ends the run with an error"},
    {"--log_level_replica", Unused::kText, "other ranks speak up in errors only"},
    {"--log_on_each_node", Unused::kBool, "rank 0 logs"},
    {"--fp16_opt_level", Unused::kText, "of an older library"},
    {"--half_precision_backend", Unused::kText, "precision comes from --bf16, --fp16 or the launcher"},
    {"--ignore_data_skip", Unused::kBool, "continuing costs no time in the data"},
    {"--dispatch_batches", Unused::kBool, "every rank cuts its own rows"},
    {"--split_batches", Unused::kBool, "batch sizes are per rank"},
};

void add_batches(config::OptionTable& table, TrainingArguments& a) {
  const char* group = "Training";
  table.add(&a.do_train, {"--do_train"}, "false: only evaluate", group);
  table.add(&a.per_device_train_batch_size, {"--per_device_train_batch_size", "--batch_size"}, "rows a rank and batch",
            group);
  table.add(&a.per_device_eval_batch_size, {"--per_device_eval_batch_size"}, "rows a rank and batch", group);
  table.add(&a.gradient_accumulation_steps, {"--gradient_accumulation_steps"}, "batches an optimizer step", group);
  table.add(&a.num_train_epochs, {"--num_train_epochs", "--num_epochs", "--epochs"},
            "passes over the training rows; fractions allowed", group);
  table.add(&a.max_steps, {"--max_steps"}, "optimizer steps; above 0 it overrides the epochs", group);
  table.add(&a.dataloader_drop_last, {"--dataloader_drop_last"}, "leave out the last incomplete batch of an epoch",
            group);
  table.add(&a.seed, {"--seed"}, "of adapters, dropout and the order of rows", group);
  table.add(&a.data_seed, {"--data_seed"}, "of the order of rows; none: seed", group);
  table
      .add(&a.device, {"--device"}, "what computes: auto and cpu the processor, cuda a GPU (not tried on one yet)",
           group)
      .choices({"auto", "cpu", "cuda"});
}

void add_optimizer(config::OptionTable& table, TrainingArguments& a) {
  const char* group = "Optimizer";
  table.add(&a.learning_rate, {"--learning_rate", "--lr"}, "peak learning rate", group);
  table.add(&a.weight_decay, {"--weight_decay"}, "not applied to biases and norms", group);
  table.add(&a.adam_beta1, {"--adam_beta1"}, "", group);
  table.add(&a.adam_beta2, {"--adam_beta2"}, "", group);
  table.add(&a.adam_epsilon, {"--adam_epsilon"}, "", group);
  table.add(&a.max_grad_norm, {"--max_grad_norm"}, "clip the global gradient norm; 0: off", group);
  table.add(&a.optim, {"--optim"}, "adamw_torch, adamw_torch_fused, sgd, adafactor, lion_32bit, ...", group);
  table.add(&a.optim_args, {"--optim_args"}, "name=value,... of that optimizer", group);
  table.add(&a.lr_scheduler_type, {"--lr_scheduler_type"},
            "linear, cosine, cosine_with_restarts, polynomial, constant, constant_with_warmup, inverse_sqrt, ...",
            group);
  table.add(&a.lr_scheduler_kwargs, {"--lr_scheduler_kwargs"}, "JSON object of the schedule's own settings", group)
      .placeholder("JSON");
  table.add(&a.warmup_steps, {"--warmup_steps"}, "steps of linear warm-up; below 1: a part of all steps", group);
  table.add(&a.warmup_ratio, {"--warmup_ratio"}, "the same as a part of all steps", group);
  table.add(&a.neftune_noise_alpha, {"--neftune_noise_alpha"},
            "uniform noise on the token embeddings, up to this / sqrt(document length * embedding size); 0: none",
            group);
}

void add_precision(config::OptionTable& table, TrainingArguments& a) {
  const char* group = "Precision and memory";
  table.add(&a.bf16, {"--bf16"}, "compute in bfloat16 (overrides the launcher's mixed_precision)", group);
  table.add(&a.fp16, {"--fp16"}, "compute in float16 with a gradient scaler", group);
  table.add(&a.gradient_checkpointing, {"--gradient_checkpointing"},
            "keep only the blocks' inputs and compute blocks again in backward", group);
  table
      .add(&a.gradient_checkpointing_kwargs, {"--gradient_checkpointing_kwargs"},
           "use_reentrant true and false are the same here", group)
      .placeholder("JSON");
}

void add_intervals(config::OptionTable& table, TrainingArguments& a) {
  const char* group = "Logging, evaluation, checkpoints";
  table.add(&a.output_dir, {"--output_dir"}, "folder of checkpoints and results", group);
  table.add(&a.overwrite_output_dir, {"--overwrite_output_dir"}, "replace a result that is already there", group);
  table.add_enum(&a.logging_strategy, intervals(), {"--logging_strategy"}, "when to log", group);
  table.add(&a.logging_steps, {"--logging_steps"}, "steps between log rows; below 1: a part of all steps", group);
  table.add(&a.logging_first_step, {"--logging_first_step"}, "log step 1 too", group);
  table.add(&a.do_eval, {"--do_eval"}, "evaluate (none: when eval_strategy says so)", group);
  table.add_enum(&a.eval_strategy, intervals(), {"--eval_strategy", "--evaluation_strategy"}, "when to evaluate",
                 group);
  table.add(&a.eval_steps, {"--eval_steps"}, "none: logging_steps", group);
  table.add(&a.eval_delay, {"--eval_delay"}, "steps or epochs before the first evaluation", group);
  table.add(&a.eval_on_start, {"--eval_on_start"}, "evaluate before the first step", group);
  add_checkpoint_options(table, a, Strategies::kWithBest, group);
  table.add(&a.load_best_model_at_end, {"--load_best_model_at_end"}, "end with the best checkpoint's weights", group);
  table.add(&a.metric_for_best_model, {"--metric_for_best_model"}, "empty: loss", group);
  table.add(&a.greater_is_better, {"--greater_is_better"}, "none: unless the metric is a loss", group);
  table.add(&a.early_stopping_patience, {"--early_stopping_patience"},
            "stop after so many evaluations without improvement; 0: off", group);
  table.add(&a.early_stopping_threshold, {"--early_stopping_threshold"}, "what counts as improvement", group);
  table.add(&a.report_to, {"--report_to"}, "tensorboard, all, none; metrics.jsonl is always written", group)
      .choices({"tensorboard", "all", "none"});
  table.add(&a.logging_dir, {"--logging_dir"}, "TensorBoard files; empty: output_dir/runs/...", group);
  table.add(&a.run_name, {"--run_name"}, "a name for the log", group);
  table.add(&a.log_level, {"--log_level"}, "how much is said", group)
      .choices({"passive", "detail", "debug", "info", "warning", "error", "critical"});
  table.add(&a.disable_tqdm, {"--disable_tqdm"}, "no progress bars", group);
}

void check_intervals(TrainingArguments& a) {
  require_option(a.logging_steps > 0 || a.logging_strategy != Interval::kSteps, "logging_steps must be positive",
                 "logging_steps");
  check_checkpoint_options(a);
  if (!a.eval_steps) a.eval_steps = a.logging_steps;
  require_option(*a.eval_steps > 0 || a.eval_strategy != Interval::kSteps, "eval_steps must be positive", "eval_steps");
  if (a.do_eval && *a.do_eval && a.eval_strategy == Interval::kNo) a.eval_strategy = Interval::kEpoch;
  const bool needs_evaluation =
      a.load_best_model_at_end || a.early_stopping_patience > 0 || a.save_strategy == Interval::kBest;
  require_option(
      !needs_evaluation || a.eval_strategy != Interval::kNo,
      "load_best_model_at_end, early_stopping_patience and save_strategy best need an --eval_strategy (steps, epoch)",
      "eval_strategy");
  if (a.load_best_model_at_end && a.save_strategy != Interval::kBest) {
    require_option(
        a.save_strategy == a.eval_strategy,
        "load_best_model_at_end needs --save_strategy and --eval_strategy to be the same, or --save_strategy best",
        "load_best_model_at_end");
    require_option(a.save_strategy != Interval::kSteps || std::fmod(a.save_steps, *a.eval_steps) == 0,
                   "load_best_model_at_end needs --save_steps to be a multiple of --eval_steps", "save_steps");
  }
  require_option(!(a.load_best_model_at_end && a.save_only_model),
                 "load_best_model_at_end needs whole checkpoints; leave out --save_only_model", "save_only_model");
  if (a.metric_for_best_model.empty()) a.metric_for_best_model = "loss";
  if (!a.metric_for_best_model.starts_with("eval_")) a.metric_for_best_model.insert(0, "eval_");
  if (!a.greater_is_better) a.greater_is_better = !a.metric_for_best_model.ends_with("loss");
}

}  // namespace

TrainerOptions TrainingArguments::trainer_options() const {
  TrainerOptions t;
  t.num_train_epochs = num_train_epochs;
  t.max_steps = max_steps;
  t.gradient_accumulation_steps = gradient_accumulation_steps;
  t.learning_rate = learning_rate;
  t.lr_scheduler_type = lr_scheduler_type;
  t.lr_scheduler_kwargs = lr_scheduler_kwargs;
  t.warmup_steps = warmup_steps >= 1 ? static_cast<std::int64_t>(warmup_steps) : 0;
  t.warmup_ratio = warmup_steps > 0 && warmup_steps < 1 ? warmup_steps : warmup_ratio;
  t.max_grad_norm = max_grad_norm;
  return t;
}

bool decays(const std::string& parameter, std::size_t dimensions) {
  const bool vector = dimensions < 2 && !parameter.ends_with("lora_magnitude_vector");
  return optim::decays_by_name(parameter) && !vector;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainingArguments& arguments,
                                                 const fsdp::FullyShardedDataParallel& model) {
  auto slices = fsdp::parameter_slices(model);
  for (auto& slice : slices) {
    if (!decays(slice.name, slice.shape.size())) slice.weight_decay = 0.0;
  }
  auto optimizer = optim::make_optimizer(arguments.optim,
                                         {.lr = arguments.learning_rate,
                                          .weight_decay = arguments.weight_decay,
                                          .adam_beta1 = arguments.adam_beta1,
                                          .adam_beta2 = arguments.adam_beta2,
                                          .adam_epsilon = arguments.adam_epsilon,
                                          .optim_args = arguments.optim_args},
                                         model.parameters(), std::move(slices), model.shard_group());
  optimizer->keep_state_in(model.state_home());
  return optimizer;
}

void add_training_arguments(config::OptionTable& table, TrainingArguments& arguments) {
  add_batches(table, arguments);
  add_optimizer(table, arguments);
  add_precision(table, arguments);
  add_intervals(table, arguments);
  for (const auto& flag : kWithoutEffect) table.add_without_effect(flag);
}

namespace {

// torch.utils.checkpoint's arguments: none of them changes anything here, but their values must make sense.
void check_checkpointing_kwargs(const std::string& text) {
  if (text.empty()) return;
  const auto fail = [&](const std::string& what) {
    throw ConfigError("--gradient_checkpointing_kwargs " + text + ": " + what, "gradient_checkpointing_kwargs");
  };
  const auto kwargs = nlohmann::json::parse(text, nullptr, false);
  if (kwargs.is_null()) return;
  if (!kwargs.is_object()) fail("expected a JSON object such as {\"use_reentrant\": false}");
  const std::vector<std::string> known = {"use_reentrant", "preserve_rng_state", "determinism_check", "debug",
                                          "early_stop"};
  for (const auto& [key, value] : kwargs.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      fail("unknown key \"" + key + "\"" + did_you_mean(key, known));
    if (key != "determinism_check" && !value.is_boolean()) fail("\"" + key + "\" must be true or false");
  }
}

}  // namespace

void check_training_arguments(TrainingArguments& a, const config::OptionTable& table, std::vector<std::string>& notes) {
  require_option(a.per_device_train_batch_size > 0 && a.per_device_eval_batch_size > 0,
                 "batch sizes must be at least 1", "per_device_train_batch_size");
  require_option(a.gradient_accumulation_steps > 0, "gradient_accumulation_steps must be at least 1",
                 "gradient_accumulation_steps");
  require_option(a.learning_rate >= 0, "learning_rate must not be negative", "learning_rate");
  require_option(a.num_train_epochs > 0 || a.max_steps > 0, "num_train_epochs must be positive", "num_train_epochs");
  require_option(a.warmup_steps >= 0 && a.warmup_ratio >= 0 && a.warmup_ratio <= 1,
                 "warmup_steps must not be negative and warmup_ratio be in [0, 1]", "warmup_steps");
  require_option(a.max_grad_norm >= 0, "max_grad_norm must not be negative; 0 turns clipping off", "max_grad_norm");
  require_option(a.neftune_noise_alpha >= 0, "--neftune_noise_alpha is a size: 0 or more", "neftune_noise_alpha");
  check_checkpointing_kwargs(a.gradient_checkpointing_kwargs);
  check_intervals(a);
  for (const auto& flag : kWithoutEffect) {
    if (table.given(flag.name)) notes.push_back(std::string(flag.name) + " has no effect: " + flag.why);
  }
}

}  // namespace tessera::train
