#include "train/training_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/low_rank_optimizer.h"
#include "base/nearest.h"
#include "tessera/base/error.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/norm.h"
#include "tessera/optim/factory.h"
#include "tessera/optim/schedule.h"
#include "train/idle_arguments.h"
#include "train/lora_fa_projections.h"
#include "train/low_rank_targets.h"
#include "train/report_to.h"
#include "train/whole_steps.h"

namespace tessera::train {
namespace {

const std::vector<config::Need> kEvaluated = {
    {"--eval_strategy", {"steps", "epoch"}}, {"--eval_on_start", {"true"}}, {"--do_train", {"false"}}};
const std::vector<config::Need> kEvaluatedInTraining = {{"--eval_strategy", {"steps", "epoch"}}};

void add_batches(config::OptionTable& table, TrainingArguments& a) {
  const char* group = "Training";
  table.add(&a.do_train, {"--do_train"}, "false: only evaluate; nothing is written but metrics", group);
  table.add(&a.per_device_train_batch_size,
            {"--per_device_train_batch_size", "--batch_size", "--per_gpu_train_batch_size"}, "rows a rank and batch",
            group);
  table
      .add(&a.per_device_eval_batch_size,
           {"--per_device_eval_batch_size", "--per_gpu_eval_batch_size", "--test_batch_size"}, "rows a rank and batch",
           group)
      .only_with(kEvaluated);
  table.add(&a.gradient_accumulation_steps, {"--gradient_accumulation_steps"}, "batches an optimizer step", group);
  table
      .add(&a.sync_each_batch, {"--sync_each_batch"},
           "sum gradients over ranks after each of them: ranks keep slices of the sums, not whole gradients, but wait "
           "for the slowest in each batch",
           group)
      .only_with({{"--gradient_accumulation_steps", {config::kSet}}});
  table
      .add(&a.num_train_epochs, {"--num_train_epochs", "--num_epochs", "--epochs"},
           "passes over the training rows; fractions allowed", group)
      .idle_with({"--max_steps", {config::kSet}});
  table.add(&a.max_steps, {"--max_steps"}, "optimizer steps; above 0 it overrides the epochs", group);
  table.add(&a.dataloader_drop_last, {"--dataloader_drop_last"},
            "leave out the last incomplete batch of an epoch; evaluations take all rows", group);
  table.add(&a.seed, {"--seed"}, "of adapters, dropout and the order of rows", group);
  table.add(&a.data_seed, {"--data_seed"}, "of the order of rows; none: seed", group);
  table.add_enum(&a.train_sampling_strategy,
                 {{"random", SamplingStrategy::kRandom},
                  {"sequential", SamplingStrategy::kSequential},
                  {"group_by_length", SamplingStrategy::kGroupByLength}},
                 {"--train_sampling_strategy"},
                 "order of the rows: random, anew in each epoch, or sequential; group_by_length is random", group);
  add_device_flag(table, a.device, group);
  table.add(&a.use_cpu, {"--use_cpu", "--no_cuda"}, "the same as --device cpu", group);
  table.add(&a.full_determinism, {"--full_determinism"},
            "the same bits in every run on a GPU, too, which is slower; on CPUs they always are", group);
  table.add(&a.tf32, {"--tf32"}, "products of fp32 in TF32 on a GPU: faster, with 10 bits of a factor", group);
}

template <class Belongs>
std::vector<std::string> names_of_optimizers(const Belongs& belongs) {
  auto names = optim::optimizer_names();
  std::erase_if(names, [&](const std::string& name) { return !belongs(name); });
  return names;
}

void add_optimizer(config::OptionTable& table, TrainingArguments& a) {
  const char* group = "Optimizer";
  table.add(&a.learning_rate, {"--learning_rate", "--lr"}, "peak learning rate", group);
  const auto low_rank = names_of_optimizers(is_low_rank_optimizer);
  std::vector<std::string> undecayed = low_rank;
  undecayed.insert(undecayed.end(), {"lomo", "adalomo"});
  std::vector<std::string> others =
      names_of_optimizers([](const std::string& name) { return name.starts_with("galore_"); });
  others.insert(others.end(),
                {"sgd", "adafactor", "torch_adafactor", "rmsprop", "adagrad", "rmsprop_bnb", "rmsprop_bnb_8bit",
                 "rmsprop_bnb_32bit", "grokadamw", "schedule_free_sgd", "lomo", "adalomo", kLoraFa});
  std::vector<std::string> without_epsilon = {"lion_32bit", "paged_lion_32bit", "lion_8bit", "paged_lion_8bit"};
  without_epsilon.insert(without_epsilon.end(), others.begin(), others.end());
  table
      .add(&a.weight_decay, {"--weight_decay"},
           a.decays_all ? "of all weights, biases and norms too" : "not applied to biases and norms", group)
      .idle_with({"--optim", undecayed});
  table.add(&a.adam_beta1, {"--adam_beta1"}, "of AdamW and Lion", group).idle_with({"--optim", others});
  table.add(&a.adam_beta2, {"--adam_beta2"}, "of AdamW and Lion", group).idle_with({"--optim", others});
  table.add(&a.adam_epsilon, {"--adam_epsilon"}, "of AdamW", group).idle_with({"--optim", without_epsilon});
  table.add(&a.max_grad_norm, {"--max_grad_norm"}, "clip the global gradient norm; 0: off", group);
  table.add_enum(
      &a.nan_policy, {{"stop", NanPolicy::kStop}, {"skip", NanPolicy::kSkip}}, {"--nan_policy"},
      "a step whose loss or gradient is not finite: stop, the run ends with an error; skip, it changes nothing", group);
  table.add(&a.optim, {"--optim"}, "the rule by which weights are updated", group)
      .known_values(optim::optimizer_names());
  table.add(&a.adafactor, {"--adafactor"}, "the same as --optim adafactor", group);
  table.add(&a.optim_args, {"--optim_args"}, "name=value,... of that optimizer", group);
  table
      .add(&a.optim_target_modules, {"--optim_target_modules"},
           "linear layers that GaLore and APOLLO see through a low rank: all-linear, or parts of names", group)
      .only_with({{"--optim", low_rank}});
  table
      .add(&a.rates.groups, {"--lr_groups"},
           "rates of parameters by a pattern of their names: lora_B=16x,embed=1e-6 (times --learning_rate, or a rate)",
           group)
      .placeholder("PATTERN=RATE,...");
  table.add(&a.rates.loraplus_lr_ratio, {"--loraplus_lr_ratio"},
            "LoRA+: lora_B learns at so many times --learning_rate; 0: off", group);
  table.add(&a.rates.loraplus_lr_embedding, {"--loraplus_lr_embedding"}, "LoRA+: the rate of LoRA on embeddings", group)
      .only_with({{"--loraplus_lr_ratio", {config::kSet}}});
  table.add(&a.lr_scheduler_type, {"--lr_scheduler_type"}, "how the rate goes on from step to step", group)
      .known_values(optim::schedule_names());
  table.add(&a.lr_scheduler_kwargs, {"--lr_scheduler_kwargs"}, "JSON object of the schedule's own settings", group)
      .placeholder("JSON");
  const config::Need without_warmup = {
      "--lr_scheduler_type",
      {"constant", "step", "StepLR", "exponential", "ExponentialLR", "multistep", "MultiStepLR", "cosine_annealing",
       "CosineAnnealingLR", "reduce_lr_on_plateau", "ReduceLROnPlateau"}};
  table.add(&a.warmup_steps, {"--warmup_steps"}, "steps of linear warm-up; below 1: a part of all steps", group)
      .idle_with(without_warmup);
  table.add(&a.warmup_ratio, {"--warmup_ratio"}, "the same as a part of all steps", group)
      .idle_with(without_warmup)
      .idle_with({"--warmup_steps", {config::kSet}});
}

void add_noise(config::OptionTable& table, TrainingArguments& a) {
  table.add(&a.neftune_noise_alpha, {"--neftune_noise_alpha"},
            "uniform noise on the token embeddings, up to this / sqrt(document length * embedding size); 0: none",
            "Optimizer");
}

void add_token_loss(config::OptionTable& table, TrainingArguments& a) {
  const char* group = "Optimizer";
  using Loss = nn::TokenLoss::Kind;
  table.add_enum(
      &a.token_loss.kind, {{"nll", Loss::kNll}, {"chunked_nll", Loss::kNll}, {"dft", Loss::kDft}}, {"--loss_type"},
      "of a token, evaluations too: nll, -log p of its label; dft, the same times p (dynamic fine-tuning)", group);
  table.add(&a.token_loss.label_smoothing, {"--label_smoothing_factor"},
            "this part of the loss is the mean over all tokens of the vocabulary; evaluations too", group);
}

void add_precision(config::OptionTable& table, TrainingArguments& a) {
  const char* group = "Precision and memory";
  table.add(&a.bf16, {"--bf16"}, "compute in bfloat16 (overrides the launcher's mixed_precision)", group);
  table.add(&a.fp16, {"--fp16"}, "compute in float16 with a gradient scaler", group);
  table.add(&a.gradient_checkpointing, {"--gradient_checkpointing", "--activation_checkpointing"},
            "keep only the blocks' inputs and compute blocks again in backward", group);
  table
      .add(&a.gradient_checkpointing_kwargs, {"--gradient_checkpointing_kwargs", "--activation_checkpointing_kwargs"},
           "{\"every_n_layers\": 2} computes every second block again, and so on; other keys change nothing here",
           group)
      .placeholder("JSON")
      .only_with({{"--gradient_checkpointing", {"true"}}});
}

void add_intervals(config::OptionTable& table, TrainingArguments& a) {
  const char* group = "Logging, evaluation, checkpoints";
  table.add(&a.output_dir, {"--output_dir"}, "folder of checkpoints and results", group);
  table.add(&a.overwrite_output_dir, {"--overwrite_output_dir"}, "replace a result that is already there", group);
  table.add_enum(&a.logging_strategy, intervals(), {"--logging_strategy"}, "when to log", group);
  table.add(&a.logging_steps, {"--logging_steps"}, "steps between log rows; below 1: a part of all steps", group)
      .implies("--logging_strategy", "steps");
  table.add(&a.logging_first_step, {"--logging_first_step"}, "log step 1 too", group);
  table.add(&a.do_eval, {"--do_eval", "--run_validation"}, "evaluate (none: when eval_strategy says so)", group);
  table.add_enum(&a.eval_strategy, intervals(), {"--eval_strategy", "--evaluation_strategy"}, "when to evaluate",
                 group);
  table.add(&a.eval_steps, {"--eval_steps"}, "steps between evaluations; none: logging_steps", group)
      .implies("--eval_strategy", "steps");
  table.add(&a.eval_delay, {"--eval_delay"}, "steps or epochs before the first evaluation", group)
      .only_with(kEvaluatedInTraining);
  table.add(&a.eval_on_start, {"--eval_on_start"}, "evaluate before the first step", group);
  add_checkpoint_options(table, a, group);
  table.add(&a.load_best_model_at_end, {"--load_best_model_at_end"}, "end with the best checkpoint's weights", group);
  table.add(&a.metric_for_best_model, {"--metric_for_best_model"}, "empty: loss", group)
      .only_with(kEvaluatedInTraining);
  table.add(&a.greater_is_better, {"--greater_is_better"}, "none: unless the metric is a loss", group)
      .only_with(kEvaluatedInTraining);
  table.add(&a.early_stopping_patience, {"--early_stopping_patience"},
            "stop after so many evaluations without improvement; 0: off", group);
  table.add(&a.early_stopping_threshold, {"--early_stopping_threshold"}, "what counts as improvement", group)
      .only_with({{"--early_stopping_patience", {config::kSet}}});
  table.add(&a.metrics_file, {"--metrics_file"}, "JSON lines; empty: metrics.jsonl in output_dir", group);
  table
      .add(&a.report_to, {"--report_to"},
           "beside the metrics file, which is always written (html: report.html in output_dir, written anew as the run "
           "goes on; jsonl:FILE: the same as --metrics_file; wandb, mlflow: the run ends with the command that imports "
           "it there; all: tensorboard and html)",
           group)
      .known_values(report_words());
  table.add(&a.logging_dir, {"--logging_dir"}, "TensorBoard files; empty: output_dir/runs/...", group)
      .only_with({{"--report_to", {"tensorboard", "all"}}});
  table.add(&a.check_replicas, {"--check_replicas"},
            "compare all ranks' weights every so many steps, one unit whole at a time; 0: never", group);
  table.add(&a.disable_tqdm, {"--disable_tqdm"}, "no progress bars", group);
  table
      .add(&a.profile, {"--profile"},
           "write a Chrome trace of steps 2 to 4 of all ranks: operators, gathers, reductions", group)
      .placeholder("FILE");
}

/// As transformers sees it, which compares parts of all steps in millionths: 0.3 is three times 0.1.
bool is_multiple(double steps, double of) {
  constexpr double kMillion = 1e6;
  return std::fmod(steps, of) == 0 || (steps < 1 && of < 1 && std::fmod(steps * kMillion, of * kMillion) == 0);
}

bool follows_metric(const TrainingArguments& a) {
  return a.lr_scheduler_type == "reduce_lr_on_plateau" || a.lr_scheduler_type == "ReduceLROnPlateau";
}

/// As Trainer, which reads --eval_steps beside --eval_strategy alone, and evaluates nothing without rows for it.
std::string flag_that_evaluates(const TrainingArguments& a, const config::OptionTable& table) {
  if (!a.do_train) return "--do_train false";
  const std::vector<std::pair<const char*, bool>> flags = {
      {"--eval_strategy", table.given("--eval_strategy") && a.eval_strategy != Interval::kNo},
      {"--do_eval", table.given("--do_eval") && a.do_eval.value_or(false)},
      {"--eval_on_start", a.eval_on_start},
      {"--load_best_model_at_end", a.load_best_model_at_end},
      {"--early_stopping_patience", a.early_stopping_patience > 0},
      {"--save_strategy best", a.save_strategy == Interval::kBest},
      {"--lr_scheduler_type", follows_metric(a)}};
  const auto found = std::find_if(flags.begin(), flags.end(), [](const auto& flag) { return flag.second; });
  return found == flags.end() ? "" : found->first;
}

void check_intervals(TrainingArguments& a, const config::OptionTable& table, config::Problems& problems) {
  check_steps(a.logging_strategy, a.logging_steps, "logging_steps", problems);
  problems.require(a.check_replicas >= 0, "--check_replicas must not be negative; 0 never compares", "check_replicas");
  check_checkpoint_options(a, problems);
  if (!a.do_train) {
    check_evaluates_only(a, a.do_eval.value_or(true), "--do_eval (--run_validation)", problems);
    a.do_eval = true;
  }
  const bool as_logging = !a.eval_steps && a.eval_strategy == Interval::kSteps;
  if (as_logging) a.eval_steps = a.logging_steps;
  if (!as_logging || a.logging_strategy != Interval::kSteps)
    check_steps(a.eval_strategy, a.eval_steps.value_or(1), "eval_steps", problems);
  // A task that evaluates unless it is told otherwise is told so by either flag.
  const bool is_told = table.given("--eval_strategy") && !table.given("--do_eval") && a.do_train;
  if (a.do_eval.value_or(false) && a.eval_strategy == Interval::kNo && !is_told) a.eval_strategy = Interval::kEpoch;
  const bool needs_evaluation =
      a.load_best_model_at_end || a.early_stopping_patience > 0 || a.save_strategy == Interval::kBest;
  problems.require(!needs_evaluation || a.eval_strategy != Interval::kNo,
                   "--load_best_model_at_end, --early_stopping_patience and --save_strategy best need an "
                   "--eval_strategy (steps, epoch)",
                   "eval_strategy");
  if (a.load_best_model_at_end && a.save_strategy != Interval::kBest) {
    problems.require(
        a.save_strategy == a.eval_strategy,
        "--load_best_model_at_end needs --save_strategy and --eval_strategy to be the same, or --save_strategy best",
        "load_best_model_at_end");
    const bool by_steps = a.save_strategy == Interval::kSteps && a.eval_strategy == Interval::kSteps;
    problems.require(!by_steps || is_multiple(a.save_steps, *a.eval_steps),
                     "--load_best_model_at_end needs --save_steps to be a multiple of --eval_steps", "save_steps");
  }
  problems.require(!(a.load_best_model_at_end && a.save_only_model),
                   "--load_best_model_at_end needs whole checkpoints; leave out --save_only_model", "save_only_model");
  problems.require(!follows_metric(a) || a.eval_strategy != Interval::kNo || !a.do_train,
                   "--lr_scheduler_type " + a.lr_scheduler_type +
                       " lowers the rate where evaluations stop improving: it needs an --eval_strategy (steps, epoch)",
                   "eval_strategy");
  a.insists_on_evaluation = flag_that_evaluates(a, table);
  a.chooses_best = needs_evaluation || follows_metric(a) || !a.metric_for_best_model.empty();
  if (a.metric_for_best_model.empty()) a.metric_for_best_model = "loss";
  if (!a.metric_for_best_model.starts_with("eval_")) a.metric_for_best_model.insert(0, "eval_");
  if (!a.greater_is_better) a.greater_is_better = !a.metric_for_best_model.ends_with("loss");
}

optim::OptimizerOptions optimizer_options(const TrainingArguments& a) {
  return {.lr = a.learning_rate,
          .weight_decay = a.weight_decay,
          .adam_beta1 = a.adam_beta1,
          .adam_beta2 = a.adam_beta2,
          .adam_epsilon = a.adam_epsilon,
          .warmup_steps = a.trainer_options().warmup_steps,
          .optim_args = a.optim_args};
}

/// Names and arguments, by making what a run would make, for no parameters and as good as endless steps.
void check_optimizer(TrainingArguments& a, const config::OptionTable& table, config::Problems& problems) {
  if (a.adafactor) {
    problems.require(!table.given("--optim") || a.optim == "adafactor",
                     "--adafactor and --optim " + a.optim + " exclude each other", "optim");
    a.optim = "adafactor";
  }
  problems.attempt([&] { (void)optim::make_optimizer(a.optim, optimizer_options(a), {}, {}, nullptr); });
  if (is_low_rank_optimizer(a.optim))
    problems.attempt([&] { check_low_rank_targets(a.optim_target_modules, a.optim); });
  problems.attempt([&] { check_learning_rates(a.rates, a.learning_rate); });
  problems.attempt([&] {
    constexpr std::int64_t kManySteps = 1'000'000'000;
    (void)optim::make_schedule(a.lr_scheduler_type, {.lr = a.learning_rate,
                                                     .total_steps = a.max_steps > 0 ? a.max_steps : kManySteps,
                                                     .kwargs_json = a.lr_scheduler_kwargs});
  });
}

}  // namespace

TrainerOptions TrainingArguments::trainer_options() const {
  TrainerOptions t;
  t.num_train_epochs = num_train_epochs;
  t.max_steps = max_steps;
  t.gradient_accumulation_steps = gradient_accumulation_steps;
  t.sync_each_batch = sync_each_batch;
  t.learning_rate = learning_rate;
  t.lr_scheduler_type = lr_scheduler_type;
  t.lr_scheduler_kwargs = lr_scheduler_kwargs;
  t.warmup_steps = warmup_steps >= 1 ? whole_steps(warmup_steps) : 0;
  t.warmup_ratio = warmup_steps > 0 && warmup_steps < 1 ? warmup_steps : warmup_ratio;
  t.max_grad_norm = max_grad_norm;
  t.nan_policy = nan_policy;
  return t;
}

DecayByModule::DecayByModule(nn::HookedModule& modules) {
  for (const auto& item : modules.named_modules("", /*include_self=*/false))
    if (dynamic_cast<const nn::LayerNorm*>(item.value().get())) layer_norms_.insert(item.key());
}

bool DecayByModule::operator()(const std::string& parameter, const std::string& own_name) const {
  return optim::decays_by_name(own_name) && !is_of_layer_norm(parameter);
}

bool DecayByModule::with_loraplus(const std::string& parameter, const optim::ParameterSlice& slice) const {
  return !is_fast_in_loraplus(slice) || (slice.name.find("bias") == std::string::npos && !is_of_layer_norm(parameter));
}

bool DecayByModule::is_of_layer_norm(const std::string& parameter) const {
  return layer_norms_.contains(parameter.substr(0, parameter.rfind('.')));
}

namespace {

/// "...embed_tokens.weight": the tables of all nn::Embedding modules.
std::set<std::string> embedding_tables(nn::HookedModule& modules) {
  std::set<std::string> names;
  for (const auto& item : modules.named_modules("", /*include_self=*/false))
    if (dynamic_cast<const nn::Embedding*>(item.value().get())) names.insert(item.key() + ".weight");
  return names;
}

/// The rows that an adapter's prompt encoder begins with: of an nn.Embedding in PEFT.
bool is_prompt_table(const std::string& parameter) {
  return parameter.starts_with("prompt_encoder.") && parameter.ends_with(".embedding.weight");
}

}  // namespace

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainingArguments& arguments, nn::HookedModule& modules,
                                                 fsdp::FullyShardedDataParallel& model,
                                                 const std::map<std::string, std::string>* own_names) {
  auto slices = fsdp::parameter_slices(model);
  if (own_names) std::erase_if(slices, [&](const auto& slice) { return !own_names->contains(slice.name); });
  const auto embeddings = embedding_tables(modules);
  const DecayByModule decays(modules);
  std::vector<std::string> names;
  for (auto& slice : slices) {
    slice.full_state = embeddings.contains(slice.name) || is_prompt_table(slice.name);
    names.push_back(slice.name);
    if (own_names) slice.name = own_names->at(slice.name);
    const bool decayed = arguments.rates.loraplus_lr_ratio > 0 ? decays.with_loraplus(names.back(), slice)
                                                               : decays(names.back(), slice.name);
    if (!arguments.decays_all && !decayed) slice.weight_decay = 0.0;
  }
  apply_learning_rates(arguments.rates, arguments.learning_rate, slices);
  for (std::size_t i = 0; i < slices.size(); ++i) slices[i].name = names[i];
  if (is_low_rank_optimizer(arguments.optim)) mark_low_rank(arguments.optim_target_modules, modules, slices);
  auto optimizer = optim::make_optimizer(arguments.optim, optimizer_options(arguments), model.parameters(),
                                         std::move(slices), model.shard_group());
  optimizer->keep_state_in(model.offload_store());
  set_projections(*optimizer, modules, model);
  return optimizer;
}

void add_device_flag(config::OptionTable& table, std::string& device, const std::string& group) {
  table.add(&device, {"--device"}, "what computes: auto a GPU where there is one, cpu the processor, cuda a GPU", group)
      .choices({"auto", "cpu", "cuda"});
}

void add_training_arguments(config::OptionTable& table, TrainingArguments& arguments, LossFlags loss) {
  add_batches(table, arguments);
  add_optimizer(table, arguments);
  add_noise(table, arguments);
  if (loss == LossFlags::kOfTokens) add_token_loss(table, arguments);
  add_precision(table, arguments);
  add_intervals(table, arguments);
  add_idle_training_arguments(table);
}

CheckpointingKwargs checkpointing_kwargs(const TrainingArguments& arguments) {
  CheckpointingKwargs out;
  const std::string& text = arguments.gradient_checkpointing_kwargs;
  if (text.empty()) return out;
  const auto fail = [&](const std::string& what) {
    throw ConfigError("--gradient_checkpointing_kwargs " + text + ": " + what, "gradient_checkpointing_kwargs");
  };
  const auto kwargs = nlohmann::json::parse(text, nullptr, false);
  if (kwargs.is_null()) return out;
  if (!kwargs.is_object()) fail("expected a JSON object such as {\"every_n_layers\": 2}");
  // torch.utils.checkpoint's arguments change nothing here, but their values must make sense.
  const std::vector<std::string> known = {
      "use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop", "every_n_layers", "offload"};
  for (const auto& [key, value] : kwargs.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      fail("unknown key \"" + key + "\"" + did_you_mean(key, known));
    if (key == "every_n_layers") {
      if (!value.is_number_integer() || value < 1) fail("\"every_n_layers\" must be a whole number of at least 1");
      out.every_n_layers = value;
    } else if (key != "determinism_check" && !value.is_boolean()) {
      fail("\"" + key + "\" must be true or false");
    }
    if (key == "offload") out.offload = value;
  }
  return out;
}

namespace {

void check_report_to(TrainingArguments& a) {
  const ReportTo to = read_report_to(a.report_to);
  if (to.metrics_file.empty()) return;
  if (!a.metrics_file.empty() && a.metrics_file != to.metrics_file)
    throw ConfigError("--report_to jsonl:" + to.metrics_file + " and --metrics_file " + a.metrics_file +
                          " name the same thing; give one of them",
                      "metrics_file");
  a.metrics_file = to.metrics_file;
}

}  // namespace

void check_metric(const TrainingArguments& a, const std::vector<std::string>& measured, config::Problems& problems) {
  problems.require(std::find(measured.begin(), measured.end(), a.metric_for_best_model) != measured.end(),
                   fmt::format("--metric_for_best_model {} is not measured{}; there are {}", a.metric_for_best_model,
                               did_you_mean(a.metric_for_best_model, measured), fmt::join(measured, ", ")),
                   "metric_for_best_model");
}

void check_training_arguments(TrainingArguments& a, const config::OptionTable& table, config::Problems& problems) {
  // ~, as Trainer, and $NAME: no shell has read what stands in a file of flags, or behind '='.
  for (std::string* path : {&a.output_dir, &a.logging_dir, &a.metrics_file}) *path = expanded_path(*path);
  problems.require(a.per_device_train_batch_size > 0, "--per_device_train_batch_size must be at least 1",
                   "per_device_train_batch_size");
  problems.require(a.per_device_eval_batch_size > 0, "--per_device_eval_batch_size must be at least 1",
                   "per_device_eval_batch_size");
  problems.require(a.gradient_accumulation_steps > 0, "--gradient_accumulation_steps must be at least 1",
                   "gradient_accumulation_steps");
  problems.require(a.learning_rate >= 0, "--learning_rate must not be negative", "learning_rate");
  problems.require(a.num_train_epochs > 0 || a.max_steps > 0, "--num_train_epochs must be positive",
                   "num_train_epochs");
  problems.require(a.warmup_steps >= 0, "--warmup_steps must not be negative", "warmup_steps");
  problems.require(a.warmup_ratio >= 0 && a.warmup_ratio <= 1, "--warmup_ratio must be in [0, 1]", "warmup_ratio");
  const auto require_moment = [&](double beta, const std::string& key) {
    problems.require(beta >= 0 && beta < 1, fmt::format("--{} must be in [0, 1), found {}", key, beta), key);
  };
  require_moment(a.adam_beta1, "adam_beta1");
  require_moment(a.adam_beta2, "adam_beta2");
  problems.require(a.adam_epsilon >= 0, fmt::format("--adam_epsilon must not be negative, found {}", a.adam_epsilon),
                   "adam_epsilon");
  problems.require(a.weight_decay >= 0, fmt::format("--weight_decay must not be negative, found {}", a.weight_decay),
                   "weight_decay");
  problems.require(a.max_grad_norm >= 0, "--max_grad_norm must not be negative; 0 turns clipping off", "max_grad_norm");
  problems.require(a.neftune_noise_alpha >= 0, "--neftune_noise_alpha is a size: 0 or more", "neftune_noise_alpha");
  problems.require(a.token_loss.label_smoothing >= 0 && a.token_loss.label_smoothing <= 1,
                   "--label_smoothing_factor is a part: 0 to 1", "label_smoothing_factor");
  problems.require(a.token_loss.label_smoothing == 0 || a.token_loss.kind == nn::TokenLoss::Kind::kNll,
                   "--label_smoothing_factor belongs to --loss_type nll: dft has no smoothed form",
                   "label_smoothing_factor");
  problems.require(!a.use_cpu || a.device != "cuda", "--use_cpu and --device cuda exclude each other", "device");
  problems.attempt([&] { (void)checkpointing_kwargs(a); });
  problems.attempt([&] { check_report_to(a); });
  check_intervals(a, table, problems);
  check_optimizer(a, table, problems);
}

}  // namespace tessera::train
