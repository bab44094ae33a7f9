#pragma once
// The training loop: gradient accumulation, clipping, schedule, optimizer, logging. It knows batches only by their
// number, so that the same loop serves every task. All ranks run it in step.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/grad_scaler.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/schedule.h"
#include "train/non_finite.h"

namespace tessera::train {

struct TrainerOptions {
  double num_train_epochs = 1;
  std::int64_t max_steps = -1;  // optimizer steps; > 0 overrides the epochs
  std::int64_t gradient_accumulation_steps = 1;
  bool sync_each_batch = false;  // sums over ranks after each; one rank alone always does
  double learning_rate = 1e-3;
  std::string lr_scheduler_type = "linear";
  std::string lr_scheduler_kwargs;  // JSON object; "": none
  std::int64_t warmup_steps = 0;
  double warmup_ratio = 0.0;                // used when warmup_steps is 0: ceil(ratio * steps)
  double max_grad_norm = 0.0;               // 0: no clipping
  bool scale_loss = false;                  // for fp16: with a gradient scaler; a step that overflows changes nothing
  NanPolicy nan_policy = NanPolicy::kStop;  // such an overflow is none of its business
};

std::int64_t steps_per_epoch(const TrainerOptions& options, std::int64_t batches_per_epoch);
/// max_steps, or those of the epochs.
std::int64_t total_steps(const TrainerOptions& options, std::int64_t batches_per_epoch);
std::int64_t warmup_steps(const TrainerOptions& options, std::int64_t total_steps);
std::unique_ptr<optim::Schedule> make_schedule(const TrainerOptions& options, std::int64_t total_steps);

/// What is trained. Batches are global: rank r computes its part of each.
class Trainable {
 public:
  virtual ~Trainable() = default;
  /// The same on every rank.
  virtual std::int64_t batches_per_epoch() const = 0;
  /// Labels that count in the loss, of the whole global batch: known to every rank without communication.
  virtual double loss_tokens(std::int64_t epoch, std::int64_t batch) = 0;
  /// Forward of this rank's part: the sum of its token losses / normalizer. Collective (units are gathered).
  virtual at::Tensor loss(std::int64_t epoch, std::int64_t batch, double normalizer) = 0;
  virtual void set_training(bool training) = 0;
  /// Tokens that the global batch makes every model weight work on, for throughput; 0: not counted.
  virtual std::int64_t input_tokens(std::int64_t epoch, std::int64_t batch) = 0;
  /// Rows of the global batch: an epoch's last one may have fewer than the others, and some ranks then none of them.
  virtual std::int64_t rows(std::int64_t batch) const = 0;
  /// Collective, after a loss that is not finite: runs the batch again and says which module of this rank gave the
  /// first value that is not finite, "'layers.0.mlp' of unit 'layers.0' (BFloat16)"; empty where that is not known.
  virtual std::string find_non_finite(std::int64_t, std::int64_t) { return {}; }

  /// What the Trainer will multiply the next losses by before backward (for ModelInput::loss_scale).
  double loss_scale() const { return loss_scale_; }
  void set_loss_scale(double scale) { loss_scale_ = scale; }
  /// Where note_rows() goes.
  void set_record(RankRecord* record) { record_ = record; }

 protected:
  /// Of loss(): the rows of the data set that this rank works at, for messages about hangs and `tessera status`.
  void note_rows(const std::vector<std::int64_t>& rows) const;

 private:
  double loss_scale_ = 1;
  RankRecord* record_ = nullptr;
};

/// ModelInput::first_draw for a pass: with the row's number in the data set, which comes once in an epoch, it says what
/// is drawn for a token, whatever the ranks, the batches and the accumulation are.
constexpr std::uint64_t first_draw_of_epoch(std::int64_t epoch) {
  return static_cast<std::uint64_t>(epoch) << 32;
}

/// The mean loss of some steps.
struct LossMeter {
  double sum = 0;
  std::int64_t steps = 0;
  void add(double loss) { sum += loss, ++steps; }
  double mean() const { return steps > 0 ? sum / static_cast<double>(steps) : 0; }
};

/// One optimizer step, the same on every rank.
struct StepReport {
  std::int64_t step = 0;     // 1-based, after the update
  double epoch = 0;          // fractional: batches done, as Trainer counts
  double loss = 0;           // token mean over ranks and accumulation
  double grad_norm = 0;      // before clipping; 0 without clipping
  double learning_rate = 0;  // the one used in this step
  double seconds = 0;
  std::int64_t input_tokens = 0, rows = 0;  // of the step, all ranks
  bool ends_epoch = false;                  // on_epoch_end follows
  bool interrupted = false;                 // some rank was asked to stop during this step
  std::string skipped;                      // NanPolicy::kSkip: what was not finite; empty: the step was taken
  std::string overflow;  // of scaled gradients in float16: what, and the new scale; it changed nothing
};
struct EpochReport {
  std::int64_t epoch = 0;
  double mean_loss = 0;  // over the epoch's steps, those before a resume too
  double seconds = 0;    // of this process
};

struct TrainerCallbacks {
  std::function<void(const StepReport&)> on_step;  // loss and grad_norm are those of the step at every call
  std::function<void(const EpochReport&)> on_epoch_end;
  std::function<bool()> should_stop;    // asked before each step; must agree on all ranks
  std::function<void()> before_update;  // before the optimizer changes parameters and state
  std::function<bool()> interruption;   // asked in each step; may differ between ranks (a signal), see StepReport
};

class Trainer {
 public:
  Trainer(TrainerOptions options, Trainable& task, fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer);

  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  std::int64_t total_steps() const { return total_steps_; }
  std::int64_t epochs() const { return epochs_; }
  std::int64_t warmup_steps() const { return train::warmup_steps(options_, total_steps_); }

  std::int64_t done() const { return done_; }
  optim::Schedule& schedule() { return *schedule_; }
  /// Null unless the loss is scaled.
  optim::GradScaler* scaler() { return scaler_.get(); }
  /// Of the epoch that the last step was in.
  const LossMeter& epoch_loss() const { return epoch_loss_; }
  /// Steps whose scaled gradients overflowed, or that NanPolicy::kSkip left out: parameters stayed, and the schedule
  /// does not count them (as in transformers' Trainer).
  std::int64_t skipped() const { return skipped_; }
  /// Continues as if so many steps had been taken, so many of them skipped, with these losses in the epoch.
  void start_at(std::int64_t steps, std::int64_t skipped, const LossMeter& epoch_loss) {
    done_ = steps, skipped_ = skipped, epoch_loss_ = epoch_loss;
  }

  /// Collective. Runs the steps that are left.
  void run(const TrainerCallbacks& callbacks);

 private:
  StepReport step(std::int64_t epoch, std::int64_t first_batch, std::int64_t batches,
                  const TrainerCallbacks& callbacks);
  /// What is the same on every rank in a step, for an error: rows, tokens, learning rate, the number of steps.
  std::string describe_step(double loss_tokens, const StepReport& report) const;
  /// Values for sum_over_ranks() with one more for each rank: a checksum of that.
  std::vector<double> with_mark(std::vector<double> values, double loss_tokens, const StepReport& report) const;
  /// Collective where they differ: DataError on every rank, with what rank 0 and the first other one have.
  void check_same_step(const std::vector<double>& sums, double loss_tokens, const StepReport& report);
  /// Collective. Measures the gradients and clips them where the options say so; returns the norm before.
  double clip();
  /// Collective. Steps unless gradients are not finite; returns the norm before clipping. norm: of gradients that are
  /// not scaled, from clip().
  double update(double norm, StepReport& report);
  /// Collective, the loss of one rank being not finite: which, and with NanPolicy::kStop in which module it began.
  std::string name_loss(const std::vector<double>& losses, std::int64_t epoch, std::int64_t first_batch);
  /// Ends the run, or notes that the step changes nothing.
  void not_finite(const std::string& what, StepReport& report);

  TrainerOptions options_;
  Trainable& task_;
  fsdp::FullyShardedDataParallel& model_;
  optim::Optimizer& optimizer_;
  std::unique_ptr<optim::Schedule> schedule_;
  std::unique_ptr<optim::GradScaler> scaler_;
  std::int64_t steps_per_epoch_ = 0, total_steps_ = 0, epochs_ = 0, done_ = 0, skipped_ = 0;
  int skipped_in_a_row_ = 0;  // by NanPolicy::kSkip
  LossMeter epoch_loss_;
};

/// The sums over ranks, in rank order: the same bits everywhere. Collective.
double sum_over_ranks(comm::Communicator& group, double value);
std::vector<double> sum_over_ranks(comm::Communicator& group, std::vector<double> values);

}  // namespace tessera::train
