// ORPO and CPO: losses of pairs that compare with no reference.
#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/relu.h>

#include "preference/loss.h"
#include "preference/measures.h"
#include "tessera/base/error.h"

namespace tessera::preference {
namespace {

/// Mean log-probabilities per token.
at::Tensor means(const Completions& pairs, std::int64_t side) {
  return pairs.get(Column::kLogps, side) / pairs.get(Column::kPredicted, side);
}

/// log(1 - exp(x)) for x < 0; float64 needs no other form.
at::Tensor log1mexp(const at::Tensor& x) {
  return (-x.expm1()).log();
}

void add_common_metrics(Loss& out, const Completions& pairs, const at::Tensor& chosen, const at::Tensor& rejected,
                        double nll) {
  add_reward_metrics(out);
  out.metrics.emplace_back("logps/rejected", mean_of(rejected));
  out.metrics.emplace_back("logps/chosen", mean_of(chosen));
  const auto logits = [&](std::int64_t side) {
    return ratio(total(pairs.get(Column::kLogits, side)), total(pairs.get(Column::kPredicted, side)));
  };
  out.metrics.emplace_back("logits/rejected", logits(1));
  out.metrics.emplace_back("logits/chosen", logits(0));
  out.metrics.emplace_back("nll_loss", nll);
}

at::Tensor cpo_losses(const at::Tensor& difference, const CpoOptions& o) {
  auto x = o.beta * difference;
  switch (o.loss) {
    case CpoLoss::kHinge:
      return at::relu(1 - x);
    case CpoLoss::kIpo:
      return (difference - 0.5 / o.beta).square();
    case CpoLoss::kSimpo:
      x = x - o.simpo_gamma;
      [[fallthrough]];
    case CpoLoss::kSigmoid:
      return -at::log_sigmoid(x) * (1 - o.label_smoothing) - at::log_sigmoid(-x) * o.label_smoothing;
  }
  throw InternalError("no such loss");
}

}  // namespace

Loss orpo_loss(const Completions& pairs, double beta) {
  const auto chosen = means(pairs, 0), rejected = means(pairs, 1);
  const auto log_odds = (chosen - rejected) - (log1mexp(chosen) - log1mexp(rejected));
  const auto log_ratio = at::log_sigmoid(log_odds);
  const auto nll = -pairs.chosen(Column::kAllLogps).sum() / pairs.chosen(Column::kAllTokens).sum();
  Loss out;
  out.losses = beta * log_ratio;
  out.loss = nll - out.losses.mean();
  out.chosen_rewards = beta * chosen.detach();
  out.rejected_rewards = beta * rejected.detach();
  add_common_metrics(out, pairs, chosen, rejected, nll.item<double>());
  out.metrics.emplace_back("log_odds_ratio", mean_of(log_ratio));
  out.metrics.emplace_back("log_odds_chosen", mean_of(log_odds));
  return out;
}

Loss cpo_loss(const Completions& pairs, const CpoOptions& o) {
  const bool averages = o.loss == CpoLoss::kIpo || o.loss == CpoLoss::kSimpo;
  const auto chosen = averages ? means(pairs, 0) : pairs.chosen(Column::kLogps);
  const auto rejected = averages ? means(pairs, 1) : pairs.rejected(Column::kLogps);
  // AlphaPO's reward (1 - p^-alpha) / alpha.
  const auto reward = [&](const at::Tensor& logps) {
    return o.alpha == 0 ? logps : (1 - (-o.alpha * logps).exp()) / o.alpha;
  };
  const auto chosen_reward = reward(chosen), rejected_reward = reward(rejected);
  Loss out;
  out.losses = cpo_losses(chosen_reward - rejected_reward, o);
  out.loss = out.losses.mean();
  double nll = 0;
  if (o.cpo_alpha != 0) {
    const auto of_tokens = -pairs.chosen(Column::kTokenLogps).sum() / pairs.chosen(Column::kPredicted).sum();
    nll = of_tokens.item<double>();
    out.loss = out.loss + o.cpo_alpha * of_tokens;
  }
  out.chosen_rewards = o.beta * chosen_reward.detach();
  out.rejected_rewards = o.beta * rejected_reward.detach();
  add_common_metrics(out, pairs, chosen, rejected, nll);
  return out;
}

}  // namespace tessera::preference
