#pragma once
// Parameters that learn at a rate of their own.
#include <string>
#include <vector>

#include "tessera/optim/optimizer.h"

namespace tessera::train {

struct LearningRates {
  /// "lora_B=16x,embed=1e-6": parameters whose name matches a regular expression (ECMAScript, anywhere in the name; the
  /// first that matches counts) learn at so many times the learning rate, or at a peak rate of their own, which the
  /// schedule and warm-up scale as they scale the learning rate.
  std::string groups;
  /// LoRA+ (Hayou et al. 2024), as peft.optimizers.create_loraplus_optimizer() groups parameters: above 0, lora_B and
  /// vectors learn at so many times the learning rate, LoRA factors of embeddings at loraplus_lr_embedding.
  double loraplus_lr_ratio = 0, loraplus_lr_embedding = 1e-6;
};

/// ConfigError (lr_groups, loraplus_lr_ratio) for text that is no list of groups, rates below 0, rates of their own
/// beside a learning rate of 0.
void check_learning_rates(const LearningRates& rates, double learning_rate);

/// In LoRA+'s fast group: PEFT's groupB and groupB_no_decay.
bool is_fast_in_loraplus(const optim::ParameterSlice& slice);

/// Sets the slices' lr_scale. ConfigError for a group that no parameter is in, and for a ratio where no LoRA trains.
void apply_learning_rates(const LearningRates& rates, double learning_rate, std::vector<optim::ParameterSlice>& slices);

}  // namespace tessera::train
