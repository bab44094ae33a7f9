#pragma once
// A training run as the Trainer's users know it: the banner, log rows, evaluations, checkpoints, the best model, early
// stopping, an orderly end at Ctrl-C, and going on from a checkpoint.
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_saver.h"
#include "checkpoint/torch_state.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "report/tensorboard.h"
#include "train/trainer.h"
#include "train/trainer_state.h"
#include "train/training_arguments.h"

namespace tessera::train {

using Metrics = std::vector<std::pair<std::string, double>>;  // "eval_loss" -> value

/// What a task adds to the Trainer.
struct SessionTask {
  std::int64_t num_examples = 0, trainable_parameters = 0;
  double flops_per_token = 0;                 // of the model, forward and backward; 0: no utilisation is shown
  at::ScalarType compute_dtype = at::kFloat;  // of the model's products
  /// Collective: metrics by name, the same on every rank. "eval_loss" is among them.
  std::function<Metrics(const report::BarStyle&)> evaluate;
  /// Collective, after each evaluation: what the model says, shown by the task and kept in the metrics file. Empty:
  /// nothing.
  std::function<nlohmann::ordered_json()> samples;
  /// Collective: the model or adapter and what belongs to it, into a folder that exists. All writing goes through the
  /// queue.
  std::function<void(const std::string& folder, checkpoint::SaveQueue& queue)> save_model;
  /// Of --save_accelerate_state, and for going on from checkpoints of Accelerate.
  checkpoint::TorchStateType torch_state = checkpoint::TorchStateType::kFull;
  checkpoint::TorchName model_name_in_torch = nullptr, optimizer_name_in_torch = nullptr;
};

class Session {
 public:
  Session(const TrainingArguments& arguments, SessionTask task, Trainer& trainer, fsdp::FullyShardedDataParallel& model,
          optim::Optimizer& optimizer, std::ostream& out, std::ostream& err);

  /// Collective. Trains to the end or to an interruption; leaves the best weights in the model when that was asked for.
  /// Returns false when it was interrupted (a checkpoint was written then).
  bool run();

 private:
  void print_banner();
  void resume();
  /// Collective. The folder to go on from, and (to the terminal) why others are not.
  std::string find_checkpoint();
  /// Collective. Parameters, optimizer and random numbers of the folder.
  void load_values(const std::string& folder);
  void push_torch_state(const std::string& folder);
  /// Steps that this run counts for what a run with another global batch had done.
  std::int64_t steps_done(const TrainerState& read) const;
  void on_step(const StepReport& step);
  void on_epoch_end();
  bool due(Interval strategy, double steps, bool at_epoch_end) const;
  void log_step();
  void evaluate();
  bool update_best(double value);
  void save_checkpoint();
  void load_best();
  void summarise(double seconds);
  /// Into the history, the terminal and the metrics file; `extra` goes to the metrics file only.
  void log(nlohmann::ordered_json row, const nlohmann::ordered_json& extra);

  const TrainingArguments& arguments_;
  SessionTask task_;
  Trainer& trainer_;
  fsdp::FullyShardedDataParallel& model_;
  optim::Optimizer& optimizer_;
  std::ostream& out_;
  report::BarStyle bars_;
  report::ProgressBar bar_;
  checkpoint::CheckpointSaver saver_;  // before any file of the run is opened: it locks the folder
  report::MetricsFile metrics_;
  std::unique_ptr<report::TensorBoardWriter> tensorboard_;  // null: not asked for
  TrainerState state_;
  struct Window {  // since the last log row
    double loss = 0, seconds = 0;
    std::int64_t steps = 0, tokens = 0;
  } window_, all_;
  double last_grad_norm_ = 0, last_learning_rate_ = 0, gemm_rate_ = 0;
  std::int64_t resumed_at_ = 0, saved_at_ = -1, evaluated_at_ = -1;
  bool stop_ = false, interrupted_ = false;
};

}  // namespace tessera::train
