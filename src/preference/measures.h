#pragma once
// Numbers that several losses log.
#include <ATen/core/Tensor.h>

#include "preference/loss.h"

namespace tessera::preference {

double total(const at::Tensor& t);
double mean_of(const at::Tensor& t);
/// 0 where nothing was counted.
double ratio(double sum, double count);
/// rewards/chosen, rewards/rejected, rewards/accuracies (a tie counts for nothing), rewards/margins.
void add_reward_metrics(Loss& loss);

}  // namespace tessera::preference
