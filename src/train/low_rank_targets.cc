#include "train/low_rank_targets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>
#include <set>

#include "tessera/base/error.h"
#include "tessera/nn/linear.h"

namespace tessera::train {
namespace {

bool is_target(const std::vector<std::string>& targets, const std::string& module) {
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& word) {
    return word == "all-linear" || word == "all_linear" || module.find(word) != std::string::npos ||
           std::regex_match(module, std::regex(word));
  });
}

}  // namespace

void check_low_rank_targets(const std::vector<std::string>& targets, const std::string& optim) {
  const auto fail = [](const std::string& what) { throw ConfigError(what, "optim_target_modules"); };
  if (targets.empty())
    fail("--optim " + optim + " needs --optim_target_modules: all-linear, or parts of the names of linear layers");
  for (const auto& word : targets) try {
      (void)std::regex(word);
    } catch (const std::regex_error& e) {
      fail("--optim_target_modules '" + word + "' is no regular expression: " + e.what());
    }
}

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
    if (is_target(targets, name)) weights.insert(name + ".weight");
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
