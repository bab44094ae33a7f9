#pragma once
// The Trainer's settings under transformers' names (TrainingArguments, 4.x and 5.x spellings), shared by tasks.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/options.h"
#include "nn/ops/token_loss.h"
#include "train/checkpoint_options.h"
#include "train/learning_rates.h"
#include "train/trainer.h"

namespace tessera::train {

enum class SamplingStrategy { kRandom, kSequential, kGroupByLength };

struct TrainingArguments : CheckpointOptions {
  std::int64_t seed = 42;
  std::optional<std::int64_t> data_seed;
  SamplingStrategy train_sampling_strategy = SamplingStrategy::kRandom;
  bool do_train = true;
  std::optional<bool> do_eval;  // none: when eval_strategy asks for it

  std::int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8, gradient_accumulation_steps = 1;
  bool sync_each_batch = false;
  double num_train_epochs = 3;
  std::int64_t max_steps = -1;
  bool dataloader_drop_last = false;

  double learning_rate = 5e-5, weight_decay = 0, adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;
  NanPolicy nan_policy = NanPolicy::kStop;
  std::int64_t check_replicas = 0;  // steps between comparisons of the ranks' weights; 0: never
  std::string optim = "adamw_torch_fused", optim_args;
  std::vector<std::string> optim_target_modules;  // of GaLore and APOLLO
  LearningRates rates;
  bool adafactor = false;                                         // the optimizer of that name
  bool decays_all = false;                                        // biases and norms, too, as torch.optim does it
  std::string lr_scheduler_type = "linear", lr_scheduler_kwargs;  // kwargs: JSON
  double warmup_steps = 0;                                        // below 1: a ratio
  double warmup_ratio = 0;
  std::optional<bool> bf16, fp16;
  bool gradient_checkpointing = false;
  std::string gradient_checkpointing_kwargs;  // JSON, see checkpointing_kwargs()
  double neftune_noise_alpha = 0;
  nn::TokenLoss token_loss;

  Interval logging_strategy = Interval::kSteps, eval_strategy = Interval::kNo;
  double logging_steps = 500;        // below 1: a part of all steps
  std::optional<double> eval_steps;  // none: logging_steps
  bool logging_first_step = false, eval_on_start = false;
  double eval_delay = 0;              // epochs or steps before the first evaluation
  std::string insists_on_evaluation;  // a flag that makes no sense without rows to evaluate; empty: none was given
  bool load_best_model_at_end = false;
  std::string metric_for_best_model;
  std::optional<bool> greater_is_better;
  bool chooses_best = true;                  // some flag asks for the best model: the run notes which one it is
  std::int64_t early_stopping_patience = 0;  // evaluations without improvement; 0: off
  double early_stopping_threshold = 0;

  std::string metrics_file;  // empty: metrics.jsonl in output_dir
  std::string metrics_path() const { return metrics_file.empty() ? output_dir + "/metrics.jsonl" : metrics_file; }
  std::vector<std::string> report_to = {"none"};
  std::string logging_dir;
  bool disable_tqdm = false;
  std::string profile;  // a file; empty: none
  std::string device = "auto";
  bool use_cpu = false;
  bool full_determinism = false, tf32 = false;  // of GPUs
  std::string wanted_device() const { return use_cpu ? "cpu" : device; }

  /// With the ratios resolved for so many optimizer steps.
  TrainerOptions trainer_options() const;
};

/// What gradient_checkpointing_kwargs asks for, as in Trainer.
struct CheckpointingKwargs {
  std::int64_t every_n_layers = 1;  // of the blocks the first of every so many is computed again
  bool offload = false;             // what is kept lies in host memory
};
/// ConfigError: no JSON object, unknown keys, values that make no sense.
CheckpointingKwargs checkpointing_kwargs(const TrainingArguments& arguments);

/// What loss a task has: TokenLoss, or one of its own, whose flags it adds itself.
enum class LossFlags { kOfTokens, kOwn };
/// Adds the flags, with the values of `arguments` as their defaults.
void add_training_arguments(config::OptionTable& table, TrainingArguments& arguments,
                            LossFlags loss = LossFlags::kOfTokens);
/// Among them, and of other tasks that compute: --device.
void add_device_flag(config::OptionTable& table, std::string& device, const std::string& group = "Options");

/// The optimizer that the arguments name, over this rank's slices. What is decayed, and that tables of embeddings keep
/// 32 bits of state, is as in Trainer (with LoRA+ as in PEFT). `modules`: what was sharded. own_names: of the trained
/// parameters that it steps, by their names in the model: what decays and learns at which rate is said of the own name;
/// null: all, by these names. Collective.
std::unique_ptr<optim::Optimizer> make_optimizer(const TrainingArguments& arguments, nn::HookedModule& modules,
                                                 fsdp::FullyShardedDataParallel& model,
                                                 const std::map<std::string, std::string>* own_names = nullptr);

/// Trainer's groups (get_decay_parameter_names): what is named as a bias or a norm is not decayed, nor a LayerNorm's
/// parameters whatever their names.
class DecayByModule {
 public:
  explicit DecayByModule(nn::HookedModule& modules);
  /// own_name: whose words count, where the model has the parameter under another one.
  bool operator()(const std::string& parameter, const std::string& own_name) const;
  bool operator()(const std::string& parameter) const { return (*this)(parameter, parameter); }
  /// With LoRA+, as create_loraplus_optimizer() of PEFT: of the fast group not biases, nor what LayerNorms have.
  bool with_loraplus(const std::string& parameter, const optim::ParameterSlice& slice) const;

 private:
  bool is_of_layer_norm(const std::string& parameter) const;

  std::set<std::string> layer_norms_;
};

/// After parsing: contradictions, values out of range, names that nobody knows. What other flags mean is filled in
/// (an evaluation's interval, the metric's direction, ...).
void check_training_arguments(TrainingArguments& arguments, const config::OptionTable& table,
                              config::Problems& problems);

/// After that, by tasks that know the names of what they measure before they load anything: --metric_for_best_model is
/// among them.
void check_metric(const TrainingArguments& arguments, const std::vector<std::string>& measured,
                  config::Problems& problems);

}  // namespace tessera::train
