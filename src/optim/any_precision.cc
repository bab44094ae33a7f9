#include "optim/any_precision.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>

#include "optim/step_scalars.h"
#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

float rounded_to(at::ScalarType dtype, float x) {
  if (dtype == at::kBFloat16) return static_cast<float>(c10::BFloat16(x));
  if (dtype == at::kHalf) return static_cast<float>(c10::Half(x));
  return x;
}

}  // namespace

AnyPrecisionAdamW::AnyPrecisionAdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                                     const AnyPrecisionOptions& options)
    : FlatOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay,
                    {"exp_avg", "exp_avg_sq", options.use_kahan_summation ? "compensation" : ""}),
      options_(options) {
  for (const auto& p : parameters_)
    if (p.scalar_type() == at::kDouble)
      throw ConfigError("optim: adamw_anyprecision works on float32 and 16-bit parameters, found float64", "optim");
  keep_state_as(0, options.momentum_dtype);
  keep_state_as(1, options.variance_dtype);
  keep_state_as(2, options.compensation_buffer_dtype);
}

Update AnyPrecisionAdamW::update(double lr, double weight_decay) const {
  const auto& o = options_;
  return bnb_adamw_update(
      {.steps = steps_, .lr = lr, .weight_decay = weight_decay, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps});
}

// Rounds where torch's operations on tensors of these dtypes round.
Update AnyPrecisionAdamW::update_of(const ParameterSlice& slice) const {
  auto u = update(lr_ * slice.lr_scale, slice.weight_decay.value_or(options_.weight_decay));
  const auto& o = options_;
  const auto of_parameter = parameters_[static_cast<std::size_t>(slice.parameter)].scalar_type();
  const bool plain = o.momentum_dtype == at::kFloat && o.variance_dtype == at::kFloat && of_parameter == at::kFloat;
  if (plain && !o.use_kahan_summation) return u;
  const auto f = [](double x) { return static_cast<float>(x); };
  Update custom;
  custom.rule = Rule::kCustom;
  custom.custom = [=, beta1 = f(u.beta1), beta2 = f(u.beta2), rest1 = f(1 - u.beta1), rest2 = f(1 - u.beta2),
                   decay = f(u.decay), correction = f(u.correction2), eps = f(u.eps),
                   rate = f(u.step_size)](std::int64_t n, float* p, const float* g, States<float> s) {
    const auto to_p = [=](float x) { return rounded_to(of_parameter, x); };
    const auto to_m = [=](float x) { return rounded_to(o.momentum_dtype, x); };
    const auto to_v = [=](float x) { return rounded_to(o.variance_dtype, x); };
    const auto to_c = [=](float x) { return rounded_to(o.compensation_buffer_dtype, x); };
    for (std::int64_t i = 0; i < n; ++i) {
      auto value = decay == 1 ? p[i] : to_p(p[i] * decay);
      s[0][i] = to_m(to_m(s[0][i] * beta1) + g[i] * rest1);
      s[1][i] = to_v(to_v(s[1][i] * beta2) + g[i] * g[i] * rest2);
      const auto root = to_v(to_v(to_v(std::sqrt(s[1][i])) / correction) + eps);
      const auto change = -rate * (s[0][i] / root);
      if (s[2]) {
        s[2][i] = to_c(s[2][i] + change);
        const auto before = value;
        value = to_p(before + s[2][i]);
        s[2][i] = to_c(s[2][i] + to_p(before - value));
      } else {
        value = to_p(value + change);
      }
      p[i] = value;
    }
  };
  return custom;
}

}  // namespace tessera::optim
