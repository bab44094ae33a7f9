#include "train/trainer.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

double sum_over_ranks(comm::Communicator& group, double value) {
  at::Tensor t = at::full({1}, value, at::kDouble);
  group.all_reduce(t, comm::ReduceOp::kSum)->wait();
  return t.item<double>();
}

Trainer::Trainer(TrainerOptions options, Trainable& task, fsdp::FullyShardedDataParallel& model,
                 optim::Optimizer& optimizer)
    : options_(std::move(options)), task_(task), model_(model), optimizer_(optimizer) {
  if (options_.gradient_accumulation_steps < 1) {
    throw ConfigError(
        "gradient_accumulation_steps must be at least 1, found " + std::to_string(options_.gradient_accumulation_steps),
        "gradient_accumulation_steps");
  }
  steps_per_epoch_ = ceil_div(task_.batches_per_epoch(), options_.gradient_accumulation_steps);
  TESSERA_CHECK(steps_per_epoch_ > 0, "an epoch has at least one batch");
  total_steps_ = options_.max_steps > 0 ? options_.max_steps : options_.num_train_epochs * steps_per_epoch_;
  epochs_ = ceil_div(total_steps_, steps_per_epoch_);
  model_.set_gradient_divisor(1.0);  // the loss is already divided by the tokens of all ranks
}

std::int64_t Trainer::warmup_steps() const {
  if (options_.warmup_steps > 0) return options_.warmup_steps;
  return static_cast<std::int64_t>(std::ceil(options_.warmup_ratio * static_cast<double>(total_steps_)));
}

StepReport Trainer::step(std::int64_t epoch, std::int64_t first_batch, std::int64_t batches) {
  const auto start = Clock::now();
  double tokens = 0;
  for (std::int64_t b = 0; b < batches; ++b) tokens += task_.loss_tokens(epoch, first_batch + b);
  tokens = std::max(tokens, 1.0);

  double local_loss = 0;
  for (std::int64_t b = 0; b < batches; ++b) {
    std::optional<fsdp::NoSync> no_sync;
    if (b + 1 < batches) no_sync.emplace(model_);
    at::Tensor loss = task_.loss(epoch, first_batch + b, tokens);
    loss.backward();
    local_loss += loss.item<double>();
  }
  StepReport report;
  report.loss = sum_over_ranks(model_.group(), local_loss);
  if (options_.max_grad_norm > 0) report.grad_norm = model_.clip_grad_norm(options_.max_grad_norm);
  report.learning_rate =
      options_.learning_rate * optim::schedule(options_.lr_scheduler_type, done_, warmup_steps(), total_steps_);
  optimizer_.set_lr(report.learning_rate);
  optimizer_.step();
  optimizer_.zero_grad();
  report.step = ++done_;
  report.epoch = static_cast<double>(done_) / static_cast<double>(steps_per_epoch_);
  report.seconds = seconds_since(start);
  return report;
}

double Trainer::run(const TrainerCallbacks& callbacks) {
  double all_losses = 0;
  bool stop = false;
  for (std::int64_t epoch = 0; epoch < epochs_ && !stop; ++epoch) {
    const auto start = Clock::now();
    EpochReport of_epoch{.epoch = epoch};
    task_.set_training(true);
    for (std::int64_t s = 0; s < steps_per_epoch_ && done_ < total_steps_; ++s) {
      if (callbacks.should_stop && callbacks.should_stop()) {
        stop = true;
        break;
      }
      const std::int64_t first = s * options_.gradient_accumulation_steps;
      const auto batches = std::min(options_.gradient_accumulation_steps, task_.batches_per_epoch() - first);
      const StepReport report = step(epoch, first, batches);
      of_epoch.mean_loss += report.loss;
      ++of_epoch.steps;
      if (callbacks.on_step) callbacks.on_step(report);
    }
    all_losses += of_epoch.mean_loss;
    of_epoch.mean_loss /= static_cast<double>(std::max<std::int64_t>(1, of_epoch.steps));
    of_epoch.seconds = seconds_since(start);
    if (callbacks.on_epoch_end) callbacks.on_epoch_end(of_epoch);
  }
  return all_losses / static_cast<double>(std::max<std::int64_t>(1, done_));
}

}  // namespace tessera::train
