#include "models/mixture_of_experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include "nn/container.h"

namespace tessera::models {

MixtureOfExperts::MixtureOfExperts(const DecoderConfig& c, at::ScalarType dtype)
    : class_name_("MixtralSparseMoeBlock"), per_token_(c.experts.per_token) {
  gate_ = register_module("gate", make_projection(c, c.hidden_size, c.experts.count, false, dtype));
  auto list = std::make_shared<nn::Container>("ModuleList");
  DecoderConfig expert = c;
  expert.mlp = MlpKind::kGated;
  for (std::int64_t i = 0; i < c.experts.count; ++i) {
    experts_.push_back(list->register_module(std::to_string(i), std::make_shared<DecoderMlp>(expert, nullptr, dtype)));
  }
  register_module("experts", list);
}

MlpOutput MixtureOfExperts::forward_impl(at::Tensor x) {
  const auto logits = (*gate_)(x);
  auto [weights, chosen] = at::topk(at::softmax(logits, 1, at::kFloat), per_token_, -1);
  weights = (weights / weights.sum(-1, /*keepdim=*/true)).to(x.scalar_type());
  auto out = at::zeros_like(x);
  for (std::size_t e = 0; e < experts_.size(); ++e) {
    const auto hits = chosen.eq(static_cast<std::int64_t>(e)).nonzero();  // [hits, 2]: token, rank of the choice
    if (hits.size(0) == 0) continue;
    const auto tokens = hits.select(1, 0), ranks = hits.select(1, 1);
    const auto weight = weights.flatten().index_select(0, tokens * per_token_ + ranks).unsqueeze(1);
    out = out.index_add(0, tokens, (*experts_[e])(x.index_select(0, tokens)) * weight);
  }
  return {out, logits};
}

at::Tensor load_balancing_loss(const std::vector<at::Tensor>& router_logits, const ExpertSettings& settings,
                               const at::Tensor& visible) {
  const auto probabilities = at::softmax(at::cat(router_logits, 0), -1);
  const auto chosen = std::get<1>(at::topk(probabilities, settings.per_token, -1));
  const auto counts = at::one_hot(chosen, settings.count).to(probabilities.scalar_type());  // [L * T, K, E]
  at::Tensor share, mean;
  if (visible.defined()) {
    const auto weight =
        visible.to(probabilities.scalar_type()).repeat({static_cast<std::int64_t>(router_logits.size())});
    share = (counts * weight.view({-1, 1, 1})).sum(0) / weight.sum();
    mean = (probabilities * weight.view({-1, 1})).sum(0) / weight.sum();
  } else {
    share = counts.mean(0);
    mean = probabilities.mean(0);
  }
  return (share * mean.unsqueeze(0)).sum() * static_cast<double>(settings.count);
}

}  // namespace tessera::models
