#include "models/mixture_of_experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "models/build_parts.h"
#include "nn/layers/container.h"
#include "nn/ops/expert_rows.h"
#include "nn/ops/sums.h"
#include "tensor/device.h"
#include "tensor/rng.h"

namespace tessera::models {

MixtureOfExperts::MixtureOfExperts(const families::DecoderConfig& c, const families::Blueprint& plan,
                                   at::ScalarType dtype)
    : class_name_(c.classes.experts), per_token_(c.experts.per_token), normalised_(c.experts.normalised) {
  gate_ = add_projection(*this, c, plan, "gate", dtype);
  auto list = std::make_shared<nn::Container>("ModuleList");
  for (const auto& part : plan.at("experts").parts)
    experts_.push_back(list->register_module(part.name, std::make_shared<DecoderMlp>(c, part, nullptr, dtype)));
  register_module("experts", list);
  shared_ = add_part(*this, plan, "shared_expert", [&](const families::Blueprint& part) {
    return std::make_shared<DecoderMlp>(c, part, nullptr, dtype);
  });
  shared_gate_ = add_projection(*this, c, plan, "shared_expert_gate", dtype);
}

at::Tensor MixtureOfExperts::together(const at::Tensor& x, const at::Tensor& chosen, const at::Tensor& weights) const {
  const auto parameters = experts_.front()->parameters();
  const bool trains =
      (is_training() || at::GradMode::is_enabled()) &&
      std::any_of(parameters.begin(), parameters.end(), [](const auto& p) { return p.requires_grad(); });
  const auto rows = nn::expert_rows(chosen, static_cast<std::int64_t>(experts_.size()), /*one_more=*/trains);
  return nn::weighted_sums(DecoderMlp::grouped(nn::spread_rows(x, rows), experts_, rows), weights, rows);
}

at::Tensor MixtureOfExperts::one_by_one(const at::Tensor& x, const at::Tensor& chosen,
                                        const at::Tensor& weights) const {
  // Choices by expert, and each expert's by token. The host asks the device once how many there are of each.
  const auto [experts, choices] = at::sort(chosen.flatten(), /*stable=*/true, 0, /*descending=*/false);
  const auto tokens = choices.floor_divide(per_token_);
  const auto bounds =
      at::searchsorted(experts, at::arange(static_cast<std::int64_t>(experts_.size()) + 1, experts.options()));
  auto out = at::zeros_like(x);
  auto& random = tensor::random_state();
  const bool has_keys = random.rows.defined() && random.rows.numel() == x.size(0);
  const auto on_host = tensor::on_host(has_keys ? at::cat({bounds, tokens}) : bounds);
  const auto keys =
      has_keys ? random.rows.index_select(0, on_host.narrow(0, bounds.numel(), tokens.numel())) : at::Tensor();
  const auto* bound = on_host.const_data_ptr<std::int64_t>();
  const auto first_draw = random.position;
  std::vector<std::int64_t> counts;
  for (std::size_t e = 0; e < experts_.size(); ++e) counts.push_back(bound[e + 1] - bound[e]);
  const auto weights_of = weights.flatten().index_select(0, choices).split_with_sizes(counts);
  auto rest = x;
  for (std::size_t e = 0; e < experts_.size(); ++e) {
    random.position = first_draw + e * nn::kDrawsOfExpert;  // whether or not this batch reaches it
    const auto begin = bound[e];
    if (counts[e] == 0) continue;
    const tensor::RowScope rows(has_keys ? keys.narrow(0, begin, counts[e]) : at::Tensor());
    const auto hit = tokens.narrow(0, begin, counts[e]);
    const auto taken = nn::take_rows(rest, hit);
    rest = taken.rest;
    out = nn::add_weighted_rows(out, (*experts_[e])(taken.rows), weights_of[e], hit);
  }
  return out;
}

MlpOutput MixtureOfExperts::forward_impl(at::Tensor x) {
  const auto [for_router, for_experts, for_shared_gate, for_shared] = nn::for_readers<4>(x);
  const auto logits = (*gate_)(for_router);
  auto [weights, chosen] = at::topk(at::softmax(logits, 1, at::kFloat), per_token_, -1);
  if (normalised_) weights = weights / weights.sum(-1, /*keepdim=*/true);
  weights = weights.to(x.scalar_type());
  auto& random = tensor::random_state();
  const auto first_draw = random.position;
  auto out = DecoderMlp::can_group(x, experts_) ? together(for_experts, chosen, weights)
                                                : one_by_one(for_experts, chosen, weights);
  random.position = first_draw + experts_.size() * nn::kDrawsOfExpert;
  if (shared_) {
    const auto weight = at::sigmoid((*shared_gate_)(for_shared_gate)).flatten();
    out = nn::add_weighted_rows(out, (*shared_)(for_shared), weight, /*tokens=*/{});
  }
  return {out, logits};
}

at::Tensor load_balancing_loss(const std::vector<at::Tensor>& router_logits, const families::ExpertSettings& settings,
                               const at::Tensor& visible, const std::function<void(at::Tensor)>& sum_over_ranks) {
  const auto probabilities = at::softmax(at::cat(router_logits, 0), -1, at::kFloat);  // [L * T, E]
  const auto chosen = std::get<1>(at::topk(probabilities, settings.per_token, -1));
  const auto weight = visible.defined()
                          ? visible.to(at::kFloat).repeat({static_cast<std::int64_t>(router_logits.size())})
                          : at::ones({probabilities.size(0)}, probabilities.options());
  const auto counts = at::one_hot(chosen, settings.count).to(at::kFloat) * weight.view({-1, 1, 1});  // [L * T, K, E]
  const auto totals = at::cat({counts.sum(0).flatten(), weight.sum().view({1})}).to(at::kDouble);
  if (sum_over_ranks) sum_over_ranks(totals);
  const auto tokens = totals[totals.size(0) - 1];
  const auto share =
      (totals.narrow(0, 0, totals.size(0) - 1).view({settings.per_token, settings.count}) / tokens).sum(0);
  const auto mean = (probabilities * weight.view({-1, 1})).sum(0) / tokens.to(at::kFloat);
  return (share.to(at::kFloat) * mean).sum() * static_cast<double>(settings.count);
}

}  // namespace tessera::models
