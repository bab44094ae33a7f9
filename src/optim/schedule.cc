#include "tessera/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <utility>

#include "base/nearest.h"
#include "optim/plateau.h"
#include "optim/schedule_keys.h"
#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

using Multiplier = std::function<double(std::int64_t)>;  // of the base rate, by step

struct Plan {
  double lr = 0;
  std::int64_t warmup = 0, total = 0;
  ScheduleKeys keys;
};

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(1, whole));
}

double half_cosine(double cycles, double progress) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress));
}

/// A linear rise over the warmup steps, then `rest(step)`.
Multiplier warmed(std::int64_t warmup, Multiplier rest) {
  return [=](std::int64_t step) { return step < warmup ? ratio(step, warmup) : rest(step); };
}

Multiplier constant(Plan&) {
  return [](std::int64_t) { return 1.0; };
}

Multiplier constant_with_warmup(Plan& plan) {
  return warmed(plan.warmup, [](std::int64_t) { return 1.0; });
}

Multiplier linear(Plan& plan) {
  return warmed(plan.warmup,
                [w = plan.warmup, t = plan.total](std::int64_t step) { return std::max(0.0, ratio(t - step, t - w)); });
}

Multiplier cosine(Plan& plan) {
  const auto cycles = plan.keys.number("num_cycles", 0.5);
  return warmed(plan.warmup, [=, w = plan.warmup, t = plan.total](std::int64_t step) {
    return std::max(0.0, half_cosine(cycles, ratio(step - w, t - w)));
  });
}

Multiplier cosine_with_restarts(Plan& plan) {
  const auto cycles = plan.keys.number("num_cycles", 1);
  return warmed(plan.warmup, [=, w = plan.warmup, t = plan.total](std::int64_t step) {
    const auto progress = ratio(step - w, t - w);
    if (progress >= 1.0) return 0.0;
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * std::fmod(cycles * progress, 1.0))));
  });
}

double min_lr_rate(Plan& plan) {
  const auto rate = plan.keys.number("min_lr_rate"), absolute = plan.keys.number("min_lr");
  if (rate.has_value() == absolute.has_value())
    plan.keys.fail("expected one of min_lr and min_lr_rate, found " + std::string(rate ? "both" : "neither"));
  return rate ? *rate : *absolute / plan.lr;
}

Multiplier cosine_with_min_lr(Plan& plan) {
  const auto cycles = plan.keys.number("num_cycles", 0.5), least = min_lr_rate(plan);
  return warmed(plan.warmup, [=, w = plan.warmup, t = plan.total](std::int64_t step) {
    return std::max(0.0, half_cosine(cycles, ratio(step - w, t - w)) * (1 - least) + least);
  });
}

/// The same with another warmup: it begins above zero and ends one step earlier.
Multiplier cosine_warmup_with_min_lr(Plan& plan) {
  const auto cycles = plan.keys.number("num_cycles", 0.5), least = min_lr_rate(plan);
  const auto start = plan.keys.number("warmup_lr_rate");
  return [=, w = plan.warmup, t = plan.total](std::int64_t step) {
    if (step < w) return start ? *start + (1.0 - *start) * ratio(step, w - 1) : ratio(step + 1, w);
    return std::max(0.0, half_cosine(cycles, ratio(step - w + 1, t - w)) * (1 - least) + least);
  };
}

Multiplier polynomial(Plan& plan) {
  const auto end = plan.keys.number("lr_end", 1e-7), power = plan.keys.number("power", 1.0), lr = plan.lr;
  if (!(lr > end))
    plan.keys.fail("expected lr_end below the learning rate " + std::to_string(lr) + ", found " + std::to_string(end));
  return warmed(plan.warmup, [=, w = plan.warmup, t = plan.total](std::int64_t step) {
    if (step > t) return end / lr;
    const auto left = 1 - static_cast<double>(step - w) / static_cast<double>(std::max<std::int64_t>(1, t - w));
    return ((lr - end) * std::pow(left, power) + end) / lr;
  });
}

Multiplier inverse_sqrt(Plan& plan) {
  (void)plan.keys.number("timescale");  // upstream's get_scheduler does not pass it on
  const auto scale = static_cast<double>(plan.warmup > 0 ? plan.warmup : 10'000);
  return warmed(plan.warmup, [=, w = plan.warmup](std::int64_t step) {
    const auto shift = scale - static_cast<double>(w);
    return 1.0 / std::sqrt((static_cast<double>(step) + shift) / scale);
  });
}

/// A curve from 0 to 1 by its name.
double rise(const std::string& curve, double progress, double cycles) {
  if (curve == "linear") return progress;
  if (curve == "cosine") return 1.0 - half_cosine(cycles, progress);
  return 1.0 - std::sqrt(1.0 - progress);
}

double fall(const std::string& curve, double progress, double cycles) {
  if (curve == "linear") return 1.0 - progress;
  if (curve == "cosine") return half_cosine(cycles, progress);
  return 1.0 - std::sqrt(progress);
}

Multiplier warmup_stable_decay(Plan& plan) {
  const std::vector<std::string> curves = {"linear", "cosine", "1-sqrt"};
  const auto up = plan.keys.word("warmup_type", "linear", curves),
             down = plan.keys.word("decay_type", "cosine", curves);
  const auto least = plan.keys.number("min_lr_ratio", 0), cycles = plan.keys.number("num_cycles", 0.5);
  const auto decay = plan.keys.integer("num_decay_steps");
  if (!decay) plan.keys.fail("expected num_decay_steps");
  const auto warmup = plan.warmup;
  const auto stable = plan.keys.integer("num_stable_steps").value_or(plan.total - warmup - *decay);
  return [=, decay = *decay](std::int64_t step) {
    const auto above = [&](double factor) { return std::max(0.0, factor * (1.0 - least) + least); };
    if (step < warmup) return above(rise(up, ratio(step, warmup), 0.5));
    if (step < warmup + stable) return 1.0;
    if (step < warmup + stable + decay) return above(fall(down, ratio(step - warmup - stable, decay), cycles));
    return least;
  };
}

Multiplier step_lr(Plan& plan) {
  const auto size = plan.keys.integer("step_size");
  const auto gamma = plan.keys.number("gamma", 0.1);
  if (!size || *size < 1) plan.keys.fail("expected a step_size of at least 1");
  return [=, size = *size](std::int64_t step) { return std::pow(gamma, static_cast<double>(step / size)); };
}

Multiplier exponential(Plan& plan) {
  const auto gamma = plan.keys.number("gamma");
  if (!gamma) plan.keys.fail("expected gamma");
  return [gamma = *gamma](std::int64_t step) { return std::pow(gamma, static_cast<double>(step)); };
}

Multiplier multistep(Plan& plan) {
  auto milestones = plan.keys.integers("milestones");
  const auto gamma = plan.keys.number("gamma", 0.1);
  if (milestones.empty()) plan.keys.fail("expected milestones, a list of steps");
  return [=](std::int64_t step) {
    const auto passed = std::count_if(milestones.begin(), milestones.end(), [&](auto m) { return m <= step; });
    return std::pow(gamma, static_cast<double>(passed));
  };
}

Multiplier cosine_annealing(Plan& plan) {
  const auto half_period = plan.keys.integer("T_max");
  if (!half_period || *half_period < 1) plan.keys.fail("expected a T_max of at least 1");
  const auto least = plan.keys.number("eta_min", 0.0) / plan.lr;
  return [=, t = static_cast<double>(*half_period)](std::int64_t step) {
    return least + (1 - least) * half_cosine(0.5, static_cast<double>(step) / t);
  };
}

struct Named {
  const char* name;
  const char* torch_name;  // "" for transformers' own
  Multiplier (*make)(Plan&);
};

constexpr Named kSchedules[] = {
    {"linear", "", linear},
    {"cosine", "", cosine},
    {"cosine_with_restarts", "", cosine_with_restarts},
    {"cosine_with_min_lr", "", cosine_with_min_lr},
    {"cosine_warmup_with_min_lr", "", cosine_warmup_with_min_lr},
    {"polynomial", "", polynomial},
    {"constant", "", constant},
    {"constant_with_warmup", "", constant_with_warmup},
    {"inverse_sqrt", "", inverse_sqrt},
    {"warmup_stable_decay", "", warmup_stable_decay},
    {"step", "StepLR", step_lr},
    {"exponential", "ExponentialLR", exponential},
    {"multistep", "MultiStepLR", multistep},
    {"cosine_annealing", "CosineAnnealingLR", cosine_annealing},
};

constexpr const char* kPlateau = "reduce_lr_on_plateau";

class OfStep final : public Schedule {
 public:
  OfStep(double lr, Multiplier multiplier) : lr_(lr), multiplier_(std::move(multiplier)) {}
  double lr(std::int64_t step) const override { return lr_ * multiplier_(step); }

 private:
  double lr_;
  Multiplier multiplier_;
};

const Named* find(const std::string& name) {
  const auto plain = name.starts_with("torch:") ? name.substr(6) : name;
  for (const auto& s : kSchedules)
    if (name == s.name || (*s.torch_name && plain == s.torch_name)) return &s;
  return nullptr;
}

[[noreturn]] void unknown(const std::string& name) {
  const auto known = schedule_names();
  std::string list;
  for (const auto& n : known) list += (list.empty() ? "" : ", ") + n;
  throw ConfigError(
      "lr_scheduler_type: unknown schedule '" + name + "'" + did_you_mean(name, known) + "; known are " + list,
      "lr_scheduler_type");
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const auto& s : kSchedules) names.emplace_back(s.name);
  names.emplace_back(kPlateau);
  return names;
}

std::unique_ptr<Schedule> make_schedule(const std::string& name, const ScheduleOptions& options) {
  Plan plan{options.lr, options.warmup_steps, options.total_steps, ScheduleKeys(options.kwargs_json, name)};
  std::unique_ptr<Schedule> made;
  if (name == kPlateau || name == "ReduceLROnPlateau") {
    made = make_plateau(plan.lr, plan.keys);
  } else {
    const auto* known = find(name);
    if (!known) unknown(name);
    made = std::make_unique<OfStep>(plan.lr, known->make(plan));
  }
  plan.keys.check_all_taken();
  return made;
}

double schedule(const std::string& name, std::int64_t step, std::int64_t warmup_steps, std::int64_t total_steps) {
  return make_schedule(name, {.lr = 1.0, .warmup_steps = warmup_steps, .total_steps = total_steps})->lr(step);
}

}  // namespace tessera::optim
