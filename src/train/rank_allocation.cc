#include "train/rank_allocation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "optim/lora_fa.h"
#include "tessera/base/error.h"

namespace tessera::train {
namespace {

constexpr const char* kSensitivity = "exp_avg_ipt";  // PEFT's names
constexpr const char* kUncertainty = "exp_avg_unc";
constexpr const char* kKept = "kept_ranks";

const std::string kEndOfE = ".lora_E.default";

at::Tensor zeros(std::int64_t numel) {
  return at::zeros({numel}, at::TensorOptions().dtype(at::kFloat));
}

/// PEFT's budget_schedule between tinit and total_step - tfinal.
std::int64_t budget_at(const peft::AdaLora& m, std::int64_t step, std::int64_t first, std::int64_t last) {
  const auto whole = static_cast<double>(m.total_step - m.tfinal - m.tinit);
  const double left = 1 - static_cast<double>(step - m.tinit) / whole;
  return static_cast<std::int64_t>(static_cast<double>(first - last) * std::pow(left, 3.0) + static_cast<double>(last));
}

std::unique_ptr<optim::Optimizer> without_lora_fa(std::unique_ptr<optim::Optimizer> inner) {
  if (dynamic_cast<const optim::LoraFa*>(&inner->computing()))
    throw ConfigError("--optim lorafa freezes lora_A, whose ranks ADALORA allocates; choose another optimizer",
                      "optim");
  return inner;
}

}  // namespace

RankAllocatingOptimizer::RankAllocatingOptimizer(std::unique_ptr<optim::Optimizer> inner,
                                                 fsdp::FullyShardedDataParallel& model, peft::AdaLora& method)
    : WrappedOptimizer(without_lora_fa(std::move(inner)), model, "ADALORA allocates ranks"), method_(method) {
  const std::array<std::pair<std::string, Factor>, 3> kFactors = {
      {{".lora_A.default", Factor::kA}, {kEndOfE, Factor::kE}, {".lora_B.default", Factor::kB}}};
  for (const auto& slice : slices_) {
    for (const auto& [end, factor] : kFactors) {
      if (!slice.name.ends_with(end)) continue;
      const auto layer = slice.name.substr(0, slice.name.size() - end.size());
      if (method_.kept().contains(layer))
        parts_.push_back({factor, layer, slice, slice.shape.at(1), zeros(slice.numel), zeros(slice.numel)});
    }
  }
}

void RankAllocatingOptimizer::set_total_steps(std::int64_t steps) {
  if (method_.total_step == 0) method_.total_step = steps;
  check_ranks();
}

void RankAllocatingOptimizer::check_ranks() const {
  method_.check_schedule();
  if (method_.target_r < method_.init_r) return;
  throw ConfigError("ADALORA: target_r is " + std::to_string(method_.target_r) + ", init_r " +
                        std::to_string(method_.init_r) + "; ranks fall from init_r to a lower target_r",
                    "target_r");
}

std::vector<optim::StateSlice> RankAllocatingOptimizer::state() {
  auto result = WrappedOptimizer::state();
  for (const char* kind : {kSensitivity, kUncertainty}) {
    for (const auto& part : parts_) {
      result.push_back({part.slice.name, kind, part.slice.shape, part.slice.offset,
                        kind == kSensitivity ? part.sensitivity : part.uncertainty});
    }
  }
  for (const auto& [layer, kept] : method_.kept())
    result.push_back({layer + kEndOfE, kKept, {kept.numel(), 1}, 0, kept, /*replicated=*/true});
  return result;
}

void RankAllocatingOptimizer::step() {
  const at::NoGradGuard no_grad;
  if (steps_ == 0) check_ranks();
  const auto now = steps_, falls_until = method_.total_step - method_.tfinal;  // counted from 0, as PEFT's users do
  step_inner();
  std::int64_t all = 0;
  for (const auto& [layer, kept] : method_.kept()) all += kept.numel();
  const auto target = method_.target_r * static_cast<std::int64_t>(method_.kept().size());
  if (now < falls_until) {
    update_averages(gradient_factor_);
    if (now > method_.tinit && now % method_.delta_t == 0) allocate(budget_at(method_, now, all, target));
  } else if (now == falls_until) {
    allocate(target);
    forget_averages();
  } else {
    mask();
  }
  gradient_factor_ = 1;
}

void RankAllocatingOptimizer::update_averages(double gradient_factor) {
  const auto beta1 = static_cast<float>(method_.beta1), rest1 = static_cast<float>(1 - method_.beta1);
  const auto beta2 = static_cast<float>(method_.beta2), rest2 = static_cast<float>(1 - method_.beta2);
  const auto factor = static_cast<float>(gradient_factor);
  std::vector<float> buffer;
  for (const auto& part : parts_) {
    const auto& slice = part.slice;
    if (slice.numel == 0) continue;
    const auto& p = parameters_[static_cast<std::size_t>(slice.parameter)];
    const auto gradient =
        p.grad().defined()
            ? p.grad().view(-1).narrow(0, slice.parameter_offset, slice.numel).to(at::kCPU, at::kFloat).contiguous()
            : zeros(slice.numel);
    const auto* values = read(slice, buffer);
    const auto* g = gradient.const_data_ptr<float>();
    auto* sensitivity = part.sensitivity.mutable_data_ptr<float>();
    auto* uncertainty = part.uncertainty.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < slice.numel; ++i) {
      const float importance = std::abs(values[i] * (g[i] * factor));
      sensitivity[i] = beta1 * sensitivity[i] + rest1 * importance;
      uncertainty[i] = beta2 * uncertainty[i] + rest2 * std::abs(importance - sensitivity[i]);
    }
  }
}

std::map<std::string, std::vector<float>> RankAllocatingOptimizer::score() const {
  std::map<std::string, std::int64_t> first;  // by layer: the place of its first rank
  std::int64_t all = 0;
  for (const auto& [layer, kept] : method_.kept()) {
    first[layer] = all;
    all += kept.numel();
  }
  // Sums of A's rows, E and B's columns in float64: the order of the ranks' parts shows in no bit that matters.
  std::vector<double> sums(static_cast<std::size_t>(3 * all), 0.0);
  for (const auto& part : parts_) {
    const auto* s = part.sensitivity.const_data_ptr<float>();
    const auto* u = part.uncertainty.const_data_ptr<float>();
    const bool by_column = part.factor == Factor::kB;
    const double count = static_cast<double>(by_column ? part.slice.shape[0] : part.columns);
    auto* to = sums.data() + static_cast<std::int64_t>(part.factor) * all + first.at(part.layer);
    for (std::int64_t i = 0; i < part.slice.numel; ++i) {
      const auto place = part.slice.offset + i;
      to[by_column ? place % part.columns : place / part.columns] += static_cast<double>(s[i] * u[i]) / count;
    }
  }
  sum_over_ranks(sums);
  std::map<std::string, std::vector<float>> out;
  const auto sum = [&](Factor factor, std::int64_t rank) {
    return static_cast<float>(sums[static_cast<std::size_t>(static_cast<std::int64_t>(factor) * all + rank)]);
  };
  for (const auto& [layer, kept] : method_.kept())
    for (std::int64_t i = first[layer]; i < first[layer] + kept.numel(); ++i)
      out[layer].push_back(sum(Factor::kE, i) + (sum(Factor::kA, i) + sum(Factor::kB, i)));
  return out;
}

void RankAllocatingOptimizer::allocate(std::int64_t budget) {
  scores_ = score();
  std::vector<float> all;
  for (const auto& [layer, scores] : scores_) all.insert(all.end(), scores.begin(), scores.end());
  const auto dropped = static_cast<std::int64_t>(all.size()) - budget;
  float threshold = -1;  // scores are not negative
  if (dropped > 0) {
    const auto last = all.begin() + (dropped - 1);
    std::nth_element(all.begin(), last, all.end());
    threshold = *last;
  }
  for (const auto& [layer, scores] : scores_) {
    auto* kept = method_.kept().at(layer).mutable_data_ptr<float>();
    for (std::size_t i = 0; i < scores.size(); ++i) kept[i] = scores[i] <= threshold ? 0.0F : 1.0F;
  }
  mask();
}

void RankAllocatingOptimizer::mask() {
  std::vector<float> buffer;
  for (const auto& part : parts_) {
    const auto& slice = part.slice;
    if (part.factor != Factor::kE || slice.numel == 0) continue;
    auto* values = read(slice, buffer);
    const auto* kept = method_.kept().at(part.layer).const_data_ptr<float>() + slice.offset;
    for (std::int64_t i = 0; i < slice.numel; ++i)
      if (kept[i] == 0) values[i] = 0;
    write(slice, values);
  }
}

void RankAllocatingOptimizer::forget_averages() {
  for (const auto& part : parts_) {
    part.sensitivity.zero_();
    part.uncertainty.zero_();
  }
}

void set_total_steps(optim::Optimizer& optimizer, std::int64_t steps) {
  if (auto* allocating = dynamic_cast<RankAllocatingOptimizer*>(&optimizer)) allocating->set_total_steps(steps);
}

}  // namespace tessera::train
