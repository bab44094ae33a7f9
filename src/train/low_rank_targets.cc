#include "train/low_rank_targets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "base/low_rank_optimizer.h"
#include "tessera/base/error.h"
#include "tessera/nn/linear.h"

namespace tessera::train {
namespace {

std::vector<std::string> linear_layers(nn::HookedModule& modules) {
  std::vector<std::string> names;
  for (const auto& item : modules.named_modules("", /*include_self=*/false)) {
    const auto* linear = dynamic_cast<const nn::Linear*>(item.value().get());
    if (linear && linear->weight_layout() == nn::WeightLayout::kOutIn)  // transformers' Conv1D is none
      names.push_back(item.key());
  }
  return names;
}

}  // namespace

std::set<std::string> low_rank_weights(const std::vector<std::string>& targets, nn::HookedModule& modules) {
  std::set<std::string> weights;
  for (const auto& name : linear_layers(modules))
    if (is_low_rank_target(targets, name)) weights.insert(name + ".weight");
  return weights;
}

void mark_low_rank(const std::vector<std::string>& targets, nn::HookedModule& modules,
                   std::vector<optim::ParameterSlice>& slices) {
  const auto weights = low_rank_weights(targets, modules);
  bool any = false;
  for (auto& slice : slices) {
    slice.low_rank = slice.shape.size() == 2 && weights.contains(slice.name);
    any = any || slice.low_rank;
  }
  if (any) return;
  const auto layers = linear_layers(modules);
  throw ConfigError(
      fmt::format("--optim_target_modules {}: no trained weight of a linear layer is among them{}",
                  fmt::join(targets, ","), layers.empty() ? "" : "; the last linear layer is '" + layers.back() + "'"),
      "optim_target_modules");
}

}  // namespace tessera::train
