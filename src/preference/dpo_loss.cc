#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sort.h>

#include <cmath>

#include "preference/loss.h"
#include "preference/measures.h"
#include "tessera/base/error.h"

namespace tessera::preference {
namespace {

/// What the losses are made of, all [N].
struct Scores {
  at::Tensor chosen_ratios, rejected_ratios;  // policy - reference
  at::Tensor chosen, rejected;                // the same under the divergence
  at::Tensor delta;                           // chosen - rejected
};

at::Tensor under_divergence(const at::Tensor& ratios, const DpoOptions& o) {
  switch (o.divergence) {
    case Divergence::kReverseKl:
      return ratios;
    case Divergence::kForwardKl:
      return 1 - (-ratios).exp();
    case Divergence::kJs:
      return at::log_sigmoid(ratios) + std::log(2.0);
    case Divergence::kAlpha: {
      constexpr double kLargest = 80;  // whose exponential float32 can hold, as upstream
      const double power = o.alpha_coefficient - 1;
      if (std::abs(power) < 1e-6) return ratios;
      return ((power * ratios).clamp_max(kLargest).exp() - 1) / power;
    }
  }
  throw InternalError("no such divergence");
}

Scores scores_of(const Completions& pairs, const DpoOptions& o) {
  Scores s;
  s.chosen_ratios = pairs.chosen(Column::kLogps) - pairs.chosen(Column::kRefLogps);
  s.rejected_ratios = pairs.rejected(Column::kLogps) - pairs.rejected(Column::kRefLogps);
  s.chosen = under_divergence(s.chosen_ratios, o);
  s.rejected = under_divergence(s.rejected_ratios, o);
  s.delta = s.chosen - s.rejected;
  return s;
}

at::Tensor sorted(const at::Tensor& t) {
  return std::get<0>(at::sort(t));
}

/// -log sigmoid(x), the part `smoothing` of it for the opposite label.
at::Tensor smoothed(const at::Tensor& x, double smoothing) {
  return -at::log_sigmoid(x) * (1 - smoothing) - at::log_sigmoid(-x) * smoothing;
}

/// Per token of the completion, counted before the shift.
at::Tensor normed_delta(const Completions& pairs, const Scores& s) {
  return s.chosen / pairs.chosen(Column::kTokens).clamp_min(1) -
         s.rejected / pairs.rejected(Column::kTokens).clamp_min(1);
}

at::Tensor exo_pair(const at::Tensor& x, double epsilon) {
  const auto win = at::sigmoid(x) * (at::log_sigmoid(x) - std::log1p(-epsilon));
  return win + at::sigmoid(-x) * (at::log_sigmoid(-x) - std::log(epsilon));
}

at::Tensor losses_of(DpoLoss kind, const Completions& pairs, const Scores& s, const DpoOptions& o) {
  const auto x = o.beta * s.delta;
  const auto chosen = o.beta * s.chosen_ratios, rejected = o.beta * s.rejected_ratios;
  const double e = o.label_smoothing, target = 0.5 / o.beta;
  switch (kind) {
    case DpoLoss::kSigmoid:
      return -at::log_sigmoid(x);
    case DpoLoss::kHinge:
      return at::relu(1 - x);
    case DpoLoss::kIpo:
      return (normed_delta(pairs, s) - target).square();
    case DpoLoss::kExoPair:
      return exo_pair(x, e);
    case DpoLoss::kNcaPair:
      return -at::log_sigmoid(chosen) - 0.5 * at::log_sigmoid(-chosen) - 0.5 * at::log_sigmoid(-rejected);
    case DpoLoss::kRobust:
      return (-(1 - e) * at::log_sigmoid(x) + e * at::log_sigmoid(-x)) / (1 - 2 * e);
    case DpoLoss::kBcoPair:
      return -at::log_sigmoid(chosen) - at::log_sigmoid(-rejected);
    case DpoLoss::kSppoHard:
      return (s.chosen_ratios - target).square() + (s.rejected_ratios + target).square();
    case DpoLoss::kAot: {
      const auto ratios = pairs.chosen(Column::kLogps) - pairs.rejected(Column::kLogps);
      const auto reference = pairs.chosen(Column::kRefLogps) - pairs.rejected(Column::kRefLogps);
      return smoothed(o.beta * (sorted(ratios) - sorted(reference)), e);
    }
    case DpoLoss::kAotUnpaired:
      return smoothed(o.beta * (sorted(s.chosen_ratios) - sorted(s.rejected_ratios)), e);
    case DpoLoss::kApoZero:
      return 1 - at::sigmoid(chosen) + at::sigmoid(rejected);
    case DpoLoss::kApoDown:
      return at::sigmoid(chosen) + 1 - at::sigmoid(chosen - rejected);
    case DpoLoss::kDiscopop: {
      const auto mix = at::sigmoid(x / o.discopop_tau);
      return -at::log_sigmoid(x) * (1 - mix) + (-x).exp() * mix;
    }
    case DpoLoss::kSft: {
      const auto mean = -pairs.chosen(Column::kTokenLogps).sum() / pairs.chosen(Column::kPredicted).sum();
      return mean.expand({pairs.size()});
    }
    case DpoLoss::kSigmoidNorm:
      return -at::log_sigmoid(o.beta * normed_delta(pairs, s));
  }
  throw InternalError("no such loss");
}

}  // namespace

const std::vector<std::pair<std::string, DpoLoss>>& dpo_losses() {
  static const std::vector<std::pair<std::string, DpoLoss>> table = {
      {"sigmoid", DpoLoss::kSigmoid},
      {"hinge", DpoLoss::kHinge},
      {"ipo", DpoLoss::kIpo},
      {"exo_pair", DpoLoss::kExoPair},
      {"nca_pair", DpoLoss::kNcaPair},
      {"robust", DpoLoss::kRobust},
      {"bco_pair", DpoLoss::kBcoPair},
      {"sppo_hard", DpoLoss::kSppoHard},
      {"aot", DpoLoss::kAot},
      {"aot_unpaired", DpoLoss::kAotUnpaired},
      {"apo_zero", DpoLoss::kApoZero},
      {"apo_down", DpoLoss::kApoDown},
      {"discopop", DpoLoss::kDiscopop},
      {"sft", DpoLoss::kSft},
      {"sigmoid_norm", DpoLoss::kSigmoidNorm},
  };
  return table;
}

DpoLoss dpo_loss_named(const std::string& name) {
  std::string names;
  for (const auto& [known, loss] : dpo_losses()) {
    if (known == name) return loss;
    names += (names.empty() ? "" : ", ") + known;
  }
  throw ConfigError("--loss_type expects one or more of " + names + ", found '" + name + "'", "loss_type");
}

Loss dpo_loss(const Completions& pairs, const DpoOptions& o) {
  const Scores s = scores_of(pairs, o);
  Loss out;
  for (std::size_t i = 0; i < o.losses.size(); ++i) {
    auto losses = losses_of(o.losses[i], pairs, s, o);
    if (o.use_weighting) losses = losses * pairs.chosen(Column::kAgreement) * pairs.rejected(Column::kAgreement);
    if (o.losses.size() == 1) out.losses = losses;
    const auto part = losses.mean() * (o.weights.empty() ? 1.0 : o.weights.at(i));
    out.loss = i == 0 ? part : out.loss + part;
  }
  out.chosen_rewards = o.beta * s.chosen_ratios.detach();
  out.rejected_rewards = o.beta * s.rejected_ratios.detach();
  const double chosen = total(pairs.chosen(Column::kPredicted)), rejected = total(pairs.rejected(Column::kPredicted));
  const auto both = [&](Column c) { return total(pairs.chosen(c)) + total(pairs.rejected(c)); };
  out.metrics = {{"entropy", ratio(both(Column::kEntropy), chosen + rejected)},
                 {"logits/chosen", ratio(total(pairs.chosen(Column::kLogits)), chosen)},
                 {"logits/rejected", ratio(total(pairs.rejected(Column::kLogits)), rejected)},
                 {"mean_token_accuracy", ratio(total(pairs.chosen(Column::kTop)), chosen)}};
  add_reward_metrics(out);
  out.metrics.emplace_back("logps/chosen", mean_of(pairs.chosen(Column::kLogps)));
  out.metrics.emplace_back("logps/rejected", mean_of(pairs.rejected(Column::kLogps)));
  return out;
}

}  // namespace tessera::preference
