#include "train/trainer.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "base/crc32c.h"
#include "base/rank_record.h"
#include "tensor/device_memory.h"
#include "tensor/host_copy.h"
#include "tensor/span.h"
#include "tessera/base/error.h"
#include "train/seconds.h"
#include "train/whole_steps.h"

namespace tessera::train {
namespace {

constexpr int kMostSkipped = 10;

/// The optimizer may go before the model, and a step that goes on uses it.
struct FinishesStep {
  fsdp::FullyShardedDataParallel& model;
  ~FinishesStep() {
    try {
      model.finish_step();
    } catch (...) {  // what ended the run is the one to report
    }
  }
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

}  // namespace

void Trainable::note_rows(const std::vector<std::int64_t>& rows) const {
  constexpr std::size_t kShown = 8;
  if (record_ == nullptr) return;
  std::string text = rows.empty() ? "no rows" : rows.size() == 1 ? "row" : "rows";
  for (std::size_t i = 0; i < std::min(rows.size(), kShown); ++i) text += " " + std::to_string(rows[i]);
  record_->rows.set(rows.size() > kShown ? text + " ..." : text);
}

double sum_over_ranks(comm::Communicator& group, double value) {
  return sum_over_ranks(group, std::vector<double>{value})[0];
}

std::vector<double> sum_over_ranks(comm::Communicator& group, std::vector<double> values) {
  at::Tensor t = at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kDouble);
  group.all_reduce(t, comm::ReduceOp::kSum)->wait();
  return values;
}

std::int64_t steps_per_epoch(const TrainerOptions& options, std::int64_t batches_per_epoch) {
  return ceil_div(batches_per_epoch, options.gradient_accumulation_steps);
}

std::int64_t total_steps(const TrainerOptions& options, std::int64_t batches_per_epoch) {
  if (options.max_steps > 0) return options.max_steps;
  const auto steps = static_cast<double>(steps_per_epoch(options, batches_per_epoch));
  return whole_steps(std::ceil(options.num_train_epochs * steps));
}

std::int64_t warmup_steps(const TrainerOptions& options, std::int64_t total_steps) {
  if (options.warmup_steps > 0) return options.warmup_steps;
  return static_cast<std::int64_t>(std::ceil(options.warmup_ratio * static_cast<double>(total_steps)));
}

std::unique_ptr<optim::Schedule> make_schedule(const TrainerOptions& options, std::int64_t total_steps) {
  return optim::make_schedule(options.lr_scheduler_type, {.lr = options.learning_rate,
                                                          .warmup_steps = warmup_steps(options, total_steps),
                                                          .total_steps = total_steps,
                                                          .kwargs_json = options.lr_scheduler_kwargs});
}

Trainer::Trainer(TrainerOptions options, Trainable& task, fsdp::FullyShardedDataParallel& model,
                 optim::Optimizer& optimizer)
    : options_(std::move(options)), task_(task), model_(model), optimizer_(optimizer) {
  if (options_.gradient_accumulation_steps < 1) {
    throw ConfigError(
        "gradient_accumulation_steps must be at least 1, found " + std::to_string(options_.gradient_accumulation_steps),
        "gradient_accumulation_steps");
  }
  steps_per_epoch_ = train::steps_per_epoch(options_, task_.batches_per_epoch());
  TESSERA_CHECK(steps_per_epoch_ > 0, "an epoch has at least one batch");
  total_steps_ = train::total_steps(options_, task_.batches_per_epoch());
  epochs_ = ceil_div(total_steps_, steps_per_epoch_);
  schedule_ = make_schedule(options_, total_steps_);
  if (options_.scale_loss) scaler_ = std::make_unique<optim::GradScaler>();
  task_.set_record(model_.group().record());
  model_.set_gradient_divisor(1.0);  // the loss is already divided by the tokens of all ranks
}

std::string Trainer::describe_step(double loss_tokens, const StepReport& report) const {
  return fmt::format(
      "{} rows of {} tokens, {} of them in the loss, learning rate {:g}, {} steps an epoch and {} in all", report.rows,
      report.input_tokens, loss_tokens, report.learning_rate, steps_per_epoch_, total_steps_);
}

std::vector<double> Trainer::with_mark(std::vector<double> values, double loss_tokens, const StepReport& report) const {
  const comm::Communicator& group = model_.group();
  const std::string step = describe_step(loss_tokens, report);
  const auto first = values.size();
  values.resize(first + static_cast<std::size_t>(group.size()));
  values[first + static_cast<std::size_t>(group.rank())] = crc32c(step.data(), step.size());  // a double holds it whole
  return values;
}

void Trainer::check_same_step(const std::vector<double>& sums, double loss_tokens, const StepReport& report) {
  comm::Communicator& group = model_.group();
  const auto marks = sums.end() - group.size();
  const auto other = std::find_if(marks, sums.end(), [&](double mark) { return mark != *marks; });
  if (other == sums.end()) return;
  const auto steps = group.all_gather_objects(describe_step(loss_tokens, report));
  const auto rank = other - marks;
  throw DataError(
      fmt::format("step {}: ranks do not take the same step: rank 0 has {}; rank {} has {}. Give all ranks the same "
                  "data, tokenizer and flags (--seed among them)",
                  done_ + 1, steps[0], rank, steps[static_cast<std::size_t>(rank)]));
}

std::string Trainer::name_loss(const std::vector<double>& losses, std::int64_t epoch, std::int64_t first_batch) {
  std::int64_t bad = -1;
  for (std::size_t b = 0; b < losses.size() && bad < 0; ++b) {
    if (!std::isfinite(losses[b])) bad = static_cast<std::int64_t>(b);
  }
  comm::Communicator& group = model_.group();
  const auto bads = group.all_gather_objects(std::to_string(bad));
  const auto first = std::find_if(bads.begin(), bads.end(), [](const auto& b) { return b != "-1"; });
  if (first == bads.end()) return "the sum of the ranks' losses is not finite";  // of finite, very large ones
  const auto rank = static_cast<int>(first - bads.begin());
  std::string what = fmt::format("the loss is not finite on rank {}", rank);
  if (options_.nan_policy == NanPolicy::kSkip) return what;  // nobody waits for the batch to run once more
  for (const Weights which : {Weights::kTrained, Weights::kFrozen})
    if (const auto weight = first_non_finite_weight(model_, which); !weight.empty())
      return what + ": there is " + weight;
  const std::string module = task_.find_non_finite(epoch, first_batch + std::stoll(*first));
  const std::string found = group.broadcast_object(module, rank);
  return found.empty() ? what : what + ", first in the output of " + found;
}

void Trainer::not_finite(const std::string& what, StepReport& report) {
  if (options_.nan_policy == NanPolicy::kStop) {
    throw Error(fmt::format(
        "step {}: {}. Lower --learning_rate, set --max_grad_norm, or look at the rows of this step; --nan_policy skip "
        "leaves such steps out. The last checkpoint is untouched.",
        done_ + 1, what));
  }
  if (++skipped_in_a_row_ == kMostSkipped) {
    throw Error(fmt::format(
        "step {}: {}. It is the {}th such step in a row, and --nan_policy skip gives up: look at the learning rate and "
        "at the data. The last checkpoint is untouched.",
        done_ + 1, what, kMostSkipped));
  }
  ++skipped_;
  report.skipped = what;
}

double Trainer::clip() {
  const tensor::Span span("gradient norm");
  const double most = options_.max_grad_norm;
  return model_.clip_grad_norm(most > 0 ? most : std::numeric_limits<double>::infinity(), optimizer_);
}

double Trainer::update(double norm, StepReport& report) {
  const bool clips = options_.max_grad_norm > 0;
  if (scaler_) {
    scaler_->unscale(optimizer_, model_.group());
    if (clips) norm = clip();
  }
  const tensor::Span span("optimizer step");
  if (scaler_) {
    const double scale = scaler_->scale();
    const bool taken = scaler_->step(optimizer_, model_.group());
    scaler_->update();
    if (!taken) {
      ++skipped_;
      report.overflow = fmt::format("the gradient, scaled by {:g} for float16, has {}; the scale is {:g} now", scale,
                                    first_non_finite_gradient(model_), scaler_->scale());
    }
    optimizer_.zero_grad();
  } else if (std::isfinite(norm)) {
    model_.step(optimizer_);
  } else {
    const std::string found = first_non_finite_gradient(model_);
    not_finite(found.empty() ? "the norm of the gradients is too large for a number" : "the gradient has " + found,
               report);
    optimizer_.zero_grad();
  }
  return clips ? norm : 0;
}

StepReport Trainer::step(std::int64_t epoch, std::int64_t first_batch, std::int64_t batches,
                         const TrainerCallbacks& callbacks) {
  const tensor::Span span("step", std::to_string(done_ + 1));
  const auto start = Clock::now();
  RankRecord* const record = model_.group().record();
  if (record != nullptr) record->begin_step(done_ + 1, total_steps_);
  double tokens = 0;
  for (std::int64_t b = 0; b < batches; ++b) tokens += task_.loss_tokens(epoch, first_batch + b);
  tokens = std::max(tokens, 1.0);

  const bool keeps_unsharded =
      !options_.sync_each_batch && model_.group().size() > 1 && !model_.syncs_beside_computation();
  std::vector<tensor::HostCopy> made;
  for (std::int64_t b = 0; b < batches; ++b) {
    std::optional<fsdp::NoSync> no_sync;
    if (b + 1 < batches && keeps_unsharded) no_sync.emplace(model_);
    if (scaler_) task_.set_loss_scale(scaler_->scale());
    at::Tensor loss;
    {
      const tensor::Span span("forward");
      loss = task_.loss(epoch, first_batch + b, tokens);
    }
    const tensor::Span span("backward");
    (scaler_ ? scaler_->scale(loss) : loss).backward();
    made.emplace_back(loss);
  }
  // Measured in any case: a gradient that is not finite would spoil the optimizer's state for good. A device that has
  // the norm has the losses, too: it is waited for once.
  const double norm = scaler_ ? 0 : clip();
  std::vector<double> losses;
  for (const auto& loss : made) losses.push_back(loss.read().item<double>());
  StepReport report;
  for (auto b = first_batch; b < first_batch + batches; ++b) {
    report.input_tokens += task_.input_tokens(epoch, b);
    report.rows += task_.rows(b);
  }
  report.learning_rate = schedule_->lr(done_ - skipped_);
  const bool interrupted = callbacks.interruption && callbacks.interruption();
  const auto local_loss = std::accumulate(losses.begin(), losses.end(), 0.0);
  const auto sums = sum_over_ranks(model_.group(), with_mark({local_loss, interrupted ? 1.0 : 0.0}, tokens, report));
  check_same_step(sums, tokens, report);
  report.loss = sums[0];
  report.interrupted = sums[1] > 0;
  if (!std::isfinite(report.loss)) not_finite(name_loss(losses, epoch, first_batch), report);
  optimizer_.set_lr(report.learning_rate);
  if (callbacks.before_update) callbacks.before_update();
  if (report.skipped.empty())
    report.grad_norm = update(norm, report);
  else
    optimizer_.zero_grad();
  if (report.skipped.empty()) skipped_in_a_row_ = 0;
  report.step = ++done_;
  report.epoch = static_cast<double>(epoch) +
                 static_cast<double>(first_batch + batches) / static_cast<double>(task_.batches_per_epoch());
  report.seconds = seconds_since(start);
  if (record != nullptr) record->end_step();
  return report;
}

void Trainer::run(const TrainerCallbacks& callbacks) {
  const FinishesStep finishes{model_};
  bool stop = false;
  for (std::int64_t epoch = done_ / steps_per_epoch_; epoch < epochs_ && done_ < total_steps_ && !stop; ++epoch) {
    const auto start = Clock::now();
    std::int64_t s = done_ - epoch * steps_per_epoch_;
    const std::int64_t first_step = s;
    if (s == 0) epoch_loss_ = {};
    task_.set_training(true);
    for (; s < steps_per_epoch_ && done_ < total_steps_; ++s) {
      if (callbacks.should_stop && callbacks.should_stop()) {
        stop = true;
        break;
      }
      const std::int64_t first = s * options_.gradient_accumulation_steps;
      const auto batches = std::min(options_.gradient_accumulation_steps, task_.batches_per_epoch() - first);
      StepReport report;
      tensor::naming_device_errors([&] { return fmt::format("step {}, {}", done_ + 1, model_.activity()); },
                                   [&] { report = step(epoch, first, batches, callbacks); });
      report.ends_epoch = s + 1 == steps_per_epoch_ || done_ == total_steps_;
      if (report.skipped.empty()) epoch_loss_.add(report.loss);
      if (callbacks.on_step) callbacks.on_step(report);
    }
    if (s == first_step) break;
    if (callbacks.on_epoch_end)  // also of an epoch that ends early, as in transformers
      callbacks.on_epoch_end({.epoch = epoch, .mean_loss = epoch_loss_.mean(), .seconds = seconds_since(start)});
  }
  model_.finish_step();
}

}  // namespace tessera::train
