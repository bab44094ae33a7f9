#pragma once
// Learning rates over optimizer steps: transformers' get_scheduler and torch.optim.lr_scheduler, by their names.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::optim {

struct ScheduleOptions {
  double lr = 0;                  // the base rate
  std::int64_t warmup_steps = 0;  // optimizer steps
  std::int64_t total_steps = 0;   // optimizer steps of the whole run
  std::string kwargs_json = "";   // Trainer's lr_scheduler_kwargs: a JSON object; "" for none
};

class Schedule {
 public:
  virtual ~Schedule() = default;
  /// The rate of optimizer step `step` (0-based), warmup included.
  virtual double lr(std::int64_t step) const = 0;
  /// A metric of an evaluation; only reduce_lr_on_plateau listens.
  virtual void observe(double /*metric*/) {}
  virtual bool listens() const { return false; }
  /// What observe() changed, as JSON, for checkpoints; "{}" for schedules that are functions of the step.
  virtual std::string state() const { return "{}"; }
  virtual void load_state(const std::string& /*json*/) {}
};

/// name: linear, cosine, cosine_with_restarts, cosine_with_min_lr, cosine_warmup_with_min_lr, polynomial, constant,
/// constant_with_warmup, inverse_sqrt, warmup_stable_decay, reduce_lr_on_plateau (transformers); step, exponential,
/// multistep, cosine_annealing, also as torch's StepLR, ExponentialLR, MultiStepLR, CosineAnnealingLR (with or without
/// "torch:"). As in transformers 4.57, inverse_sqrt takes a `timescale` and does not use it. ConfigError for unknown
/// names and keys (with the nearest known one) and for values that upstream rejects.
std::unique_ptr<Schedule> make_schedule(const std::string& name, const ScheduleOptions& options);

/// Names that make_schedule() knows, for help texts.
std::vector<std::string> schedule_names();

/// Multiplier of the base rate at optimizer step `step` (0-based), for schedules that need no keys and no base rate.
double schedule(const std::string& name, std::int64_t step, std::int64_t warmup_steps, std::int64_t total_steps);

}  // namespace tessera::optim
