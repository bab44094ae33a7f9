#include "optim/rules.h"

#include "optim/step_scalars.h"
#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

std::vector<std::string> adam_states(bool amsgrad) {
  if (amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

std::vector<ParameterSlice> split_by_decay(const std::vector<at::Tensor>& parameters, const AdamWOptions& options) {
  if (options.no_decay.empty()) return whole_slices(parameters);
  if (options.no_decay.size() != parameters.size())
    throw ConfigError("AdamW: no_decay must hold one list for each of the " + std::to_string(parameters.size()) +
                      " parameters, found " + std::to_string(options.no_decay.size()));
  std::vector<ParameterSlice> slices;
  for (const auto& whole : whole_slices(parameters)) {
    std::int64_t at = 0;
    auto add = [&](std::int64_t end, std::optional<double> decay) {
      auto slice = whole;
      slice.offset = slice.parameter_offset = at;
      slice.numel = end - at;
      slice.weight_decay = decay;
      if (slice.numel > 0) slices.push_back(std::move(slice));
      at = end;
    };
    for (auto [begin, end] : options.no_decay[static_cast<std::size_t>(whole.parameter)]) {
      if (begin < at || end < begin || end > whole.numel)
        throw ConfigError("AdamW: no_decay ranges must be ascending, disjoint and inside the parameter of " +
                          std::to_string(whole.numel) + " elements, found [" + std::to_string(begin) + ", " +
                          std::to_string(end) + ")");
      add(begin, std::nullopt);
      add(end, 0.0);
    }
    add(whole.numel, std::nullopt);
  }
  return slices;
}

}  // namespace

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions options)
    : AdamW(parameters, split_by_decay(parameters, options), options) {}

AdamW::AdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, AdamWOptions options)
    : FlatOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay,
                    adam_states(options.amsgrad)),
      options_(std::move(options)) {}

Update AdamW::update(double lr, double weight_decay) const {
  const auto& o = options_;
  auto u = torch_adam_update({.steps = steps_, .lr = lr, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps});
  u.decay = 1 - lr * weight_decay;
  return u;
}

Adam::Adam(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const AdamOptions& options)
    : FlatOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay,
                    adam_states(options.amsgrad)),
      options_(options) {}

Update Adam::update(double lr, double weight_decay) const {
  const auto& o = options_;
  auto u = torch_adam_update({.steps = steps_, .lr = lr, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps});
  u.l2 = weight_decay;
  return u;
}

HfAdamW::HfAdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const AdamWOptions& options)
    : FlatOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay, adam_states(false)),
      options_(options) {}

Update HfAdamW::update(double lr, double weight_decay) const {
  const auto& o = options_;
  return hf_adamw_update(
      {.steps = steps_, .lr = lr, .weight_decay = weight_decay, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps});
}

Sgd::Sgd(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const SgdOptions& options)
    : FlatOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay,
                    options.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{}),
      options_(options) {
  if (options.nesterov && (options.momentum <= 0 || options.dampening != 0))
    throw ConfigError("sgd: nesterov needs a momentum and no dampening, found momentum " +
                          std::to_string(options.momentum) + ", dampening " + std::to_string(options.dampening),
                      "optim_args");
}

Update Sgd::update(double lr, double weight_decay) const {
  Update u;
  u.rule = Rule::kSgd;
  u.lr = lr;
  u.l2 = weight_decay;
  u.momentum = options_.momentum;
  u.dampening = steps_ > 1 ? options_.dampening : 0;
  u.nesterov = options_.nesterov;
  return u;
}

Lion::Lion(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const LionOptions& options)
    : FlatOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay, {"exp_avg"}),
      options_(options) {}

Update Lion::update(double lr, double weight_decay) const {
  return lion_update(
      {.steps = steps_, .lr = lr, .weight_decay = weight_decay, .beta1 = options_.beta1, .beta2 = options_.beta2});
}

RmsProp::RmsProp(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const RmsPropOptions& options)
    : FlatOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay,
                    {"square_avg", options.centered ? "grad_avg" : "", options.momentum > 0 ? "momentum_buffer" : ""}),
      options_(options) {}

Update RmsProp::update(double lr, double weight_decay) const {
  Update u;
  u.rule = Rule::kRmsProp;
  u.lr = lr;
  u.l2 = weight_decay;
  u.alpha = options_.alpha;
  u.eps = options_.eps;
  u.momentum = options_.momentum;
  return u;
}

Adagrad::Adagrad(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const AdagradOptions& options)
    : FlatOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay, {"sum"}),
      options_(options) {
  fill_state(0, options.initial_accumulator_value);
}

Update Adagrad::update(double lr, double weight_decay) const {
  Update u;
  u.rule = Rule::kAdagrad;
  u.lr = lr / (1 + static_cast<double>(steps_ - 1) * options_.lr_decay);
  u.l2 = weight_decay;
  u.eps = options_.eps;
  return u;
}

}  // namespace tessera::optim
