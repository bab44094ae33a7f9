#pragma once
// Which matrices GaLore and APOLLO see through a low rank: Trainer's optim_target_modules.
#include <set>
#include <string>
#include <vector>

#include "tessera/nn/block.h"
#include "tessera/optim/optimizer.h"

namespace tessera::train {

/// The names of the weights of nn.Linear modules that the words choose.
std::set<std::string> low_rank_weights(const std::vector<std::string>& targets, nn::HookedModule& modules);

/// Sets low_rank in slices of the weights of nn.Linear modules: "all-linear", or all whose name is one of the words,
/// has one in it, or is matched whole by one as a regular expression. ConfigError where that is no trained matrix.
void mark_low_rank(const std::vector<std::string>& targets, nn::HookedModule& modules,
                   std::vector<optim::ParameterSlice>& slices);

}  // namespace tessera::train
