#include "optim/bitsandbytes.h"

#include <algorithm>
#include <cmath>

#include "optim/step_scalars.h"

namespace tessera::optim {
namespace {

constexpr BlockState kFirst{.number = 1}, kSecond{.number = 2, .with_signs = false};

}  // namespace

BnbAdam::BnbAdam(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const BnbAdamOptions& options,
                 std::shared_ptr<comm::Communicator> group)
    : BlockOptimizer(std::move(parameters), std::move(slices), options, {kFirst, kSecond}, std::move(group)),
      options_(options) {}

Update BnbAdam::update(double lr, double weight_decay) const {
  const auto& o = options_;
  return bnb_adamw_update(
      {.steps = steps_, .lr = lr, .weight_decay = weight_decay, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps});
}

BnbLion::BnbLion(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const BnbLionOptions& options,
                 std::shared_ptr<comm::Communicator> group)
    : BlockOptimizer(std::move(parameters), std::move(slices), options, {kFirst}, std::move(group)),
      options_(options) {}

Update BnbLion::update(double lr, double weight_decay) const {
  return lion_update(
      {.steps = steps_, .lr = lr, .weight_decay = weight_decay, .beta1 = options_.beta1, .beta2 = options_.beta2});
}

AdEmaMix::AdEmaMix(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                   const AdEmaMixOptions& options, std::shared_ptr<comm::Communicator> group)
    : BlockOptimizer(std::move(parameters), std::move(slices), options,
                     {{.number = 1, .part = 0, .parts = 2}, {.number = 1, .part = 1, .parts = 2}, kSecond},
                     std::move(group)),
      options_(options) {}

Update AdEmaMix::update(double lr, double weight_decay) const {
  const auto t = static_cast<double>(steps_);
  const auto& o = options_;
  Update u;
  u.rule = Rule::kAdEmaMix;
  u.lr = lr;
  u.decay = 1 - lr * weight_decay;
  u.beta1 = o.beta1;
  u.beta2 = o.beta2;
  u.beta3 = o.beta3;
  u.alpha = o.alpha;
  u.eps = o.eps;
  u.correction1 = 1 - std::pow(o.beta1, t);
  u.correction2 = std::sqrt(1 - std::pow(o.beta2, t));
  if (o.t_alpha > 0) u.alpha = std::min(t * o.alpha / o.t_alpha, o.alpha);
  if (o.t_beta3 > 0) {
    const double fast = std::log(o.beta1), slow = std::log(o.beta3), part = t / o.t_beta3;
    u.beta3 = std::min(std::exp(fast * slow / ((1 - part) * slow + part * fast)), o.beta3);
  }
  return u;
}

BnbRmsProp::BnbRmsProp(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                       const BnbRmsPropOptions& options, std::shared_ptr<comm::Communicator> group)
    : BlockOptimizer(std::move(parameters), std::move(slices), options, {kFirst}, std::move(group)),
      options_(options) {}

Update BnbRmsProp::update(double lr, double weight_decay) const {
  Update u;
  u.rule = Rule::kBnbRmsProp;
  u.lr = lr;
  u.l2 = weight_decay;
  u.alpha = options_.alpha;
  u.eps = options_.eps;
  return u;
}

}  // namespace tessera::optim
