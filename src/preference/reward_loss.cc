#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>

#include "preference/loss.h"
#include "preference/measures.h"

namespace tessera::preference {

Loss reward_loss(const Completions& pairs, const RewardOptions& o) {
  const auto chosen = pairs.chosen(Column::kReward), rejected = pairs.rejected(Column::kReward);
  const auto margin = chosen - rejected;
  Loss out;
  out.losses = -at::log_sigmoid(margin - pairs.chosen(Column::kMargin));
  out.loss = out.losses.mean();
  if (o.center_rewards_coefficient)
    out.loss = out.loss + *o.center_rewards_coefficient * (chosen + rejected).square().mean();
  out.chosen_rewards = chosen.detach();
  out.rejected_rewards = rejected.detach();
  const auto all = pairs.table().select(0, static_cast<std::int64_t>(Column::kReward)).detach();
  out.metrics = {{"min_reward", all.min().item<double>()},
                 {"mean_reward", mean_of(all)},
                 {"max_reward", all.max().item<double>()},
                 {"accuracy", mean_of(chosen.gt(rejected).to(at::kDouble))},
                 {"margin", mean_of(margin)}};
  return out;
}

}  // namespace tessera::preference
