#include "optim/whole_parameter.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "optim/flat_numbers.h"
#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

constexpr std::int64_t kSummedChunk = 1 << 14;  // sums run over fixed chunks, so that threads do not change them
constexpr std::int64_t kSummedBlock = 1024;

FlatNumbers numbers_of(const at::Tensor& t) {
  return {const_cast<void*>(t.const_data_ptr()), t.scalar_type()};
}

double debiased(double beta, double t) {
  return (std::pow(beta, t) - beta) / (std::pow(beta, t) - 1);
}

}  // namespace

WholeParameterOptimizer::WholeParameterOptimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                                                 double lr, double weight_decay, std::vector<std::string> states,
                                                 std::shared_ptr<comm::Communicator> group)
    : FlatOptimizer(std::move(parameters), std::move(slices), lr, weight_decay, std::move(states)),
      group_(std::move(group)) {
  for (const auto& p : parameters_)
    if (p.scalar_type() == at::kDouble)
      throw ConfigError("optim: this optimizer works on float32 and 16-bit parameters, found float64", "optim");
  for (const auto& slice : slices_) names_.push_back(slice.name);
  std::sort(names_.begin(), names_.end());
  names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
  sums_.resize(names_.size());
}

void WholeParameterOptimizer::step() {
  const at::NoGradGuard no_grad;
  ++steps_;  // what the sums are made with
  factor_ = gradient_factor_;
  std::fill(sums_.begin(), sums_.end(), 0.0);
  for (const auto& slice : slices_) {
    if (slice.numel == 0) continue;
    const auto grad = parameters_[static_cast<std::size_t>(slice.parameter)].grad();
    if (!grad.defined()) continue;
    const auto at = std::lower_bound(names_.begin(), names_.end(), slice.name) - names_.begin();
    sums_[static_cast<std::size_t>(at)] += sum_of_slice(slice, grad.contiguous());
  }
  if (collective() && !sums_.empty())
    group_
        ->all_reduce(at::from_blob(sums_.data(), {static_cast<std::int64_t>(sums_.size())}, at::kDouble),
                     comm::ReduceOp::kSum)
        ->wait();
  --steps_;
  FlatOptimizer::step();
}

double WholeParameterOptimizer::sum_of_slice(const ParameterSlice& slice, const at::Tensor& grad) {
  const auto gradients = numbers_of(grad);
  const auto state = numbers_of(state_tensor(summed_state(), static_cast<std::size_t>(slice.parameter)));
  const auto begin = state_offset(slice);
  std::vector<double> partial(static_cast<std::size_t>((slice.numel + kSummedChunk - 1) / kSummedChunk));
  at::parallel_for(0, static_cast<std::int64_t>(partial.size()), 1, [&](std::int64_t from, std::int64_t to) {
    std::array<float, kSummedBlock> g, s;
    for (auto chunk = from; chunk < to; ++chunk)
      for (auto at = chunk * kSummedChunk; at < std::min(slice.numel, (chunk + 1) * kSummedChunk); at += kSummedBlock) {
        const auto count = std::min(kSummedBlock, slice.numel - at);
        partial[static_cast<std::size_t>(chunk)] +=
            sum(count, gradients.read(slice.parameter_offset + at, count, g.data()),
                state.read(begin + at, count, s.data()));
      }
  });
  double total = 0;
  for (const double x : partial) total += x;
  return total;
}

double WholeParameterOptimizer::sum_of(const ParameterSlice& slice) const {
  const auto at = std::lower_bound(names_.begin(), names_.end(), slice.name) - names_.begin();
  return sums_[static_cast<std::size_t>(at)];
}

StableAdamW::StableAdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                         const StableAdamWOptions& options, std::shared_ptr<comm::Communicator> group)
    : WholeParameterOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay,
                              {"exp_avg", "exp_avg_sq"}, std::move(group)),
      options_(options) {}

double StableAdamW::sum(std::int64_t numel, const float* gradients, const float* state) const {
  const double keep = debiased(options_.beta2, static_cast<double>(steps_)), least = options_.eps * options_.eps;
  double total = 0;
  for (std::int64_t i = 0; i < numel; ++i) {
    const double g = gradients[i] * factor(), square = g * g;
    total += square / std::max(keep * state[i] + (1 - keep) * square, least);
  }
  return total;
}

Update StableAdamW::update(double lr, double weight_decay) const {
  const auto t = static_cast<double>(steps_);
  const double max_lr = options_.max_lr > 0 ? options_.max_lr : options_.lr;
  Update u;
  u.rule = Rule::kBnbAdam;  // with the corrections inside of the betas
  u.beta1 = debiased(options_.beta1, t);
  u.beta2 = debiased(options_.beta2, t);
  u.eps = options_.eps;
  u.step_size = lr;
  u.decay = 1 - (options_.decouple_lr ? lr / max_lr : lr) * weight_decay;
  return u;
}

Update StableAdamW::update_of(const ParameterSlice& slice) const {
  const auto numel = static_cast<double>(std::max<std::int64_t>(c10::multiply_integers(slice.shape), 1));
  const double rate = lr_ * slice.lr_scale / std::max(1.0, std::sqrt(sum_of(slice) / numel));
  return update(rate, slice.weight_decay.value_or(options_.weight_decay));
}

GrokAdamW::GrokAdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                     const GrokAdamWOptions& options, std::shared_ptr<comm::Communicator> group)
    : WholeParameterOptimizer(std::move(parameters), std::move(slices), options.lr, options.weight_decay,
                              {"exp_avg", "exp_avg_sq", "grok_ema"}, std::move(group)),
      options_(options) {
  std::map<std::optional<double>, int>
      sizes;  // of the groups: what has a decay of its own is one, also where all are 0
  std::map<std::string, int> places;
  for (const auto& slice : slices_)
    if (!places.contains(slice.name)) places[slice.name] = sizes[slice.weight_decay]++;
  place_in_group_.assign(places.begin(), places.end());
}

double GrokAdamW::sum(std::int64_t numel, const float* gradients, const float*) const {
  double total = 0;
  for (std::int64_t i = 0; i < numel; ++i) {
    const double g = gradients[i] * factor();
    total += g * g;
  }
  return total;
}

Update GrokAdamW::update(double lr, double weight_decay) const {
  const auto t = static_cast<double>(steps_);
  Update u;
  u.rule = Rule::kGrokAdam;
  u.beta1 = options_.beta1;
  u.beta2 = options_.beta2;
  u.beta3 = options_.alpha_init;
  u.alpha = options_.lamb;
  u.eps = options_.eps;
  u.step_size = lr * std::sqrt(1 - std::pow(options_.beta2, t)) / (1 - std::pow(options_.beta1, t));
  u.decay = 1 - lr * weight_decay;
  return u;
}

Update GrokAdamW::update_of(const ParameterSlice& slice) const {
  auto u = update(lr_ * slice.lr_scale, slice.weight_decay.value_or(options_.weight_decay));
  const auto place = std::lower_bound(place_in_group_.begin(), place_in_group_.end(), std::pair(slice.name, 0));
  u.beta1 *= std::pow(1 - options_.gamma, place->second);
  const double limit = options_.gradient_clipping;
  if (limit > 0) u.gradient_factor = std::min(1.0, limit / (std::sqrt(sum_of(slice)) + 1e-6));
  return u;
}

}  // namespace tessera::optim
