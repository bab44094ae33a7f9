#include "optim/step_scalars.h"

#include <cmath>

namespace tessera::optim {
namespace {

Update adam_family(Rule rule, const StepScalars& s) {
  Update u;
  u.rule = rule;
  u.beta1 = s.beta1;
  u.beta2 = s.beta2;
  u.eps = s.eps;
  return u;
}

}  // namespace

Update torch_adam_update(const StepScalars& s) {
  const auto t = static_cast<double>(s.steps);
  auto u = adam_family(Rule::kAdam, s);
  u.step_size = s.lr / (1 - std::pow(s.beta1, t));
  u.inv_sqrt_correction2 = 1 / std::sqrt(1 - std::pow(s.beta2, t));
  return u;
}

Update bnb_adamw_update(const StepScalars& s) {
  const auto t = static_cast<double>(s.steps);
  auto u = adam_family(Rule::kBnbAdam, s);
  u.decay = 1 - s.lr * s.weight_decay;
  u.step_size = s.lr / (1 - std::pow(s.beta1, t));
  u.correction2 = std::sqrt(1 - std::pow(s.beta2, t));
  return u;
}

Update hf_adamw_update(const StepScalars& s) {
  const auto t = static_cast<double>(s.steps);
  auto u = adam_family(Rule::kBnbAdam, s);
  u.decay = 1 - s.lr * s.weight_decay;  // of the step, too: it comes after
  u.step_size = u.decay * s.lr * std::sqrt(1 - std::pow(s.beta2, t)) / (1 - std::pow(s.beta1, t));
  return u;
}

Update lion_update(const StepScalars& s) {
  auto u = adam_family(Rule::kLion, s);
  u.lr = s.lr;
  u.decay = 1 - s.lr * s.weight_decay;
  return u;
}

}  // namespace tessera::optim
