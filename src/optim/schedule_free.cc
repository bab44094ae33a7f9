#include "optim/schedule_free.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

using Base = ScheduleFreeOptions::Base;

std::vector<std::string> schedule_free_states(Base base) {
  return {"z", base == Base::kSgd ? "" : "exp_avg_sq", ""};
}

/// Length of RAdam's approximated moving average at step t, and at infinity.
double rho_at(double beta2, double t) {
  const double infinite = 2 / (1 - beta2) - 1, power = std::pow(beta2, t);
  return infinite - 2 * t * power / (1 - power);
}

}  // namespace

ScheduleFree::ScheduleFree(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                           const ScheduleFreeOptions& options)
    : FlatOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay,
                    schedule_free_states(options.base)),
      options_(options),
      average_(at::zeros({2}, at::kDouble)) {
  if (options.beta1 <= 0 || options.beta1 >= 1)
    throw ConfigError(
        "schedule_free: beta1 (momentum) must be above 0 and below 1, found " + std::to_string(options.beta1),
        "optim_args");
}

double ScheduleFree::rectification() const {
  const double infinite = 2 / (1 - options_.beta2) - 1, rho = rho_at(options_.beta2, static_cast<double>(steps_));
  if (rho <= 4) return options_.silent_sgd_phase ? 0 : 1;
  return std::sqrt((rho - 4) * (rho - 2) * infinite / ((infinite - 4) * (infinite - 2) * rho));
}

double ScheduleFree::rate_factor() const {
  if (options_.base == Base::kRAdam) return rectification();
  return std::min(1.0, static_cast<double>(steps_) / std::max(options_.warmup_steps, 1.0));
}

void ScheduleFree::step() {
  TESSERA_CHECK(!shown_, "show_trained() comes before the next step");
  if (steps_ == 0) update_all({{.rule = Rule::kKeep}});
  ++steps_;
  auto* average = average_.mutable_data_ptr<double>();
  average[1] = std::max(average[1], lr_ * rate_factor());
  const double weight =
      std::pow(static_cast<double>(steps_), options_.r) * std::pow(average[1], options_.weight_lr_power);
  average[0] += weight;
  mix_ = average[0] > 0 ? weight / average[0] : 0;
  --steps_;
  FlatOptimizer::step();
}

Update ScheduleFree::update(double lr, double weight_decay) const {
  const auto t = static_cast<double>(steps_);
  Update u;
  u.rule = Rule::kScheduleFree;
  u.beta2 = options_.beta2;
  u.eps = options_.eps;
  u.l2 = weight_decay;
  u.correction2 = 1 - std::pow(options_.beta2, t);
  u.adaptive = options_.base == Base::kAdamW || (options_.base == Base::kRAdam && rho_at(options_.beta2, t) > 4);
  u.lr = lr * rate_factor();
  u.mix = mix_;
  u.step_size = u.lr * (options_.beta1 * (1 - mix_) - 1);
  return u;
}

void ScheduleFree::show_average() {
  if (shown_ || steps_ == 0) return;
  shown_ = true;
  add_passing_state(2);
  update_all({{.rule = Rule::kAverage, .mix = 1 - 1 / options_.beta1}});
}

void ScheduleFree::show_trained() {
  if (!shown_) return;
  shown_ = false;
  update_all({{.rule = Rule::kTakeBack}});
  drop_passing_state(2);
}

std::vector<StateSlice> ScheduleFree::state() {
  auto result = FlatOptimizer::state();
  if (slices_.empty()) return result;
  StateSlice average;
  average.parameter = slices_.front().name;
  average.state = "average";
  average.shape = {2};
  average.local = average_;
  average.replicated = true;
  const auto same = [&](const StateSlice& s) { return s.parameter == average.parameter; };
  const auto last = std::find_if_not(result.begin(), result.end(), same);
  result.insert(last, std::move(average));
  return result;
}

}  // namespace tessera::optim
