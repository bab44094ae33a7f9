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

#include "report/live_report.h"
#include "report/memory_watch.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "report/tensorboard.h"
#include "train/phase_clock.h"
#include "train/presentation.h"
#include "train/profile.h"
#include "train/run_checkpoints.h"
#include "train/trainer.h"
#include "train/trainer_state.h"
#include "train/training_arguments.h"

namespace tessera::train {

/// What a task adds to the Trainer.
struct SessionTask {
  std::int64_t num_examples = 0, num_eval_examples = 0;
  std::int64_t trainable_parameters = 0;
  double flops_per_token = 0;                 // of the model, forward and backward; 0: no utilisation is shown
  at::ScalarType compute_dtype = at::kFloat;  // of the model's products
  /// Collective: metrics by name, the same on every rank. "eval_loss" is among them.
  std::function<Metrics(const report::BarStyle&)> evaluate;
  /// Collective, after each evaluation: what the model says, shown by the task and kept in the metrics file. Empty:
  /// nothing.
  std::function<nlohmann::ordered_json()> samples;
  /// Numbers of the batches since the last call, the same on every rank; log rows hold their means. Empty: none.
  std::function<std::vector<Metrics>()> batch_metrics;
  /// Collective, at the end of a run that was not interrupted: its result, with the weights that it leaves. Empty:
  /// none.
  std::function<void()> save_result;
  bool has_one_rate = true;               // false: batch_metrics say the rates, log rows have no other
  report::MemoryWatch* memory = nullptr;  // told of what the run does; a run over its limit ends as at a signal
  std::int64_t planned_bytes = 0;         // of a rank, for the last log row
  at::Device device = at::kCPU;           // whose memory that row has, too
  std::int64_t planned_device_bytes = 0;
  nlohmann::ordered_json settings;       // what run.json says of the run; null: that file is not written
  Presentation* presentation = nullptr;  // null: the Trainer's rows are printed
  CheckpointContent checkpoints;
};

/// Collective: one evaluation of the model as it is, and its samples, printed, added to the metrics file and left as
/// eval_results.json (train/results.h). Nothing else is written; the output folder is locked as by a run.
/// CheckpointError on every rank when another run holds it.
void evaluate_only(const TrainingArguments& arguments, const SessionTask& task, comm::Communicator& group,
                   std::ostream& out);

class Session {
 public:
  Session(const TrainingArguments& arguments, SessionTask task, const Training& training, std::ostream& out,
          std::ostream& err);

  /// Collective. Trains to the end or to an interruption; leaves the best weights in the model when that was asked for,
  /// else the last ones; of an optimizer that averages, the average. Saves them as the task says.
  /// Returns false when it was interrupted (a checkpoint was written then).
  bool run();
  const TrainerState& state() const { return state_; }
  /// RunCheckpoints::copied_bytes().
  std::int64_t copied_for_saves() const { return checkpoints_.copied_bytes(); }

 private:
  void print_banner();
  /// Collective: DataError where the weights that the run begins with are not finite.
  void check_weights();
  /// What this rank does from now on, for the watch over memory and the report.
  void enter(Phase phase);
  /// run.json: settings, what was planned, where the metrics are.
  void write_settings() const;
  /// The metrics file and TensorBoard's, of rank 0; of a run that goes on, without what it will write again.
  void open_records();
  void on_step(const StepReport& step);
  void on_epoch_end(const EpochReport& epoch);
  /// What the end of an epoch brings besides a checkpoint.
  void close_epoch(const EpochReport& epoch);
  bool due(Interval strategy, double steps, bool at_epoch_end) const;
  double eval_steps() const { return arguments_.eval_steps.value_or(arguments_.logging_steps); }
  void log_step();
  /// A loss far above those before it: a line, and a row of the history and of the metrics file.
  void log_spike(const LossSpike& spike);
  void log_epoch();
  /// Collective: Error where weights differ.
  void check_replicas();
  /// Collective, a fraction of a second; not before the first step, which nobody should wait for.
  void measure_machine(double step_seconds);
  void evaluate();
  /// One evaluation into the log.
  void measure();
  /// What the last evaluation means: to the schedule, to the best model, to early stopping.
  void judge();
  bool update_best(double value);
  /// Where there were too many evaluations without improvement.
  void stop_early();
  /// After an epoch's last step it waits for what the epoch's end brings: log rows and evaluations.
  void save_checkpoint();
  void save_now();
  /// The checkpoint is written at once: who sent the signal may not wait for an evaluation. One that was due is left to
  /// the run that goes on.
  void interrupt(const StepReport& step);
  void evaluate_what_was_left();
  void load_best();
  /// The run in one row, its result saved, and what it held until then.
  void summarise(double seconds);
  nlohmann::ordered_json measured() const;
  /// Into the history and, without a presentation, the terminal. Returns the row with its step.
  nlohmann::ordered_json show(nlohmann::ordered_json row);
  /// The same, and into the metrics file, which alone has `extra`.
  void log(nlohmann::ordered_json row, const nlohmann::ordered_json& extra);

  const TrainingArguments& arguments_;
  SessionTask task_;
  Trainer& trainer_;
  fsdp::FullyShardedDataParallel& model_;
  optim::Optimizer& optimizer_;
  std::ostream& out_;
  report::BarStyle bars_;
  report::ProgressBar bar_;
  RunCheckpoints checkpoints_;  // before any file of the run is opened: it locks the folder
  report::MetricsFile metrics_{""};
  std::unique_ptr<report::TensorBoardWriter> tensorboard_;  // null: not asked for
  std::unique_ptr<report::LiveReport> page_;                // null: not asked for
  TrainerState& state_;                                     // of checkpoints_
  std::string changed_flags_;  // of a run that goes on, of rank 0: what it has otherwise, before run.json is its own
  struct {                     // of this process
    double seconds = 0;
    std::int64_t steps = 0, tokens = 0, rows = 0;
  } all_;
  PhaseClock phases_;
  double last_grad_norm_ = 0, last_learning_rate_ = 0, gemm_rate_ = 0, measuring_seconds_ = 0;
  std::int64_t evaluated_at_ = -1;
  Metrics evaluated_;     // at that step
  bool is_best_ = false;  // they are
  std::unique_ptr<Profile> profile_;
  bool stop_ = false, interrupted_ = false;
  bool epoch_ends_ = false, save_at_epoch_end_ = false;
};

}  // namespace tessera::train
