#pragma once
// trainer_state.json as transformers' Trainer writes it, and its rows as they are printed.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "train/metric_means.h"
#include "train/recent_losses.h"
#include "train/trainer.h"

namespace tessera::train {

/// What the next log row is about: the steps since the last one.
struct LogWindow {
  LossMeter loss;
  double seconds = 0;
  std::int64_t tokens = 0;
  MetricMeans metrics = {};  // of the task's batches
};

struct TrainerState {
  std::int64_t global_step = 0, max_steps = 0, num_train_epochs = 0;
  double epoch = 0;
  std::int64_t logging_steps = 0, eval_steps = 0, save_steps = 0, train_batch_size = 0;
  std::optional<double> best_metric;
  std::int64_t best_global_step = 0;
  std::string best_model_checkpoint;
  double total_flos = 0;
  std::int64_t num_input_tokens_seen = 0;
  nlohmann::json log_history = nlohmann::json::array();
  std::int64_t early_stopping_patience = 0;  // evaluations; 0: no early stopping
  double early_stopping_threshold = 0;
  std::int64_t evaluations_without_improvement = 0;
  bool evaluation_due = false;  // a signal ended the run before it
  LossMeter loss, epoch_loss;   // of all steps, for train_loss; of those of the epoch
  LogWindow window;
  RecentLosses recent_losses;
  bool has_meters = true;  // false: read from a file without running averages
  double loss_scale = 0;   // of the gradient scaler; 0: none
  std::int64_t steps_at_loss_scale = 0;
  std::int64_t skipped_steps = 0;                       // by overflow; the schedule does not count them
  std::int64_t rows_per_step = 0, steps_per_epoch = 0;  // of all ranks; 0: not known
  std::string schedule = "{}";                          // optim::Schedule::state()

  bool stops_early() const {
    return early_stopping_patience > 0 && evaluations_without_improvement >= early_stopping_patience;
  }
  /// json.dumps(indent=2, sort_keys=True) and a newline.
  std::string to_json() const;
  /// CheckpointError names the file when it is missing, no JSON or lacks a key.
  static TrainerState read(const std::string& file);
};

/// A row as Python prints a dict, its numbers with five digits (files keep all of them):
/// {'loss': 4.711, 'grad_norm': 2.9801, 'learning_rate': 0.0, 'epoch': 0.08}.
std::string python_text(const nlohmann::ordered_json& row);

}  // namespace tessera::train
