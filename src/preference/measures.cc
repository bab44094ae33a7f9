#include "preference/measures.h"

#include <ATen/TensorOperators.h>

namespace tessera::preference {

double total(const at::Tensor& t) {
  return t.detach().sum().item<double>();
}

double mean_of(const at::Tensor& t) {
  return t.detach().mean().item<double>();
}

double ratio(double sum, double count) {
  return count > 0 ? sum / count : 0;
}

void add_reward_metrics(Loss& loss) {
  const auto &chosen = loss.chosen_rewards, &rejected = loss.rejected_rewards;
  loss.metrics.emplace_back("rewards/chosen", mean_of(chosen));
  loss.metrics.emplace_back("rewards/rejected", mean_of(rejected));
  loss.metrics.emplace_back("rewards/accuracies", mean_of(chosen.gt(rejected).to(at::kDouble)));
  loss.metrics.emplace_back("rewards/margins", mean_of(chosen - rejected));
}

}  // namespace tessera::preference
