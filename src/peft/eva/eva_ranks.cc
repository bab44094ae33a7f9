#include "peft/eva/eva_ranks.h"

#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <map>
#include <utility>

#include "peft/targets.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

/// In the order of PEFT's layer_hook_map: equal shares are taken in it.
std::vector<std::size_t> in_order(const std::vector<EvaLayer>& layers) {
  std::vector<std::size_t> own, alike;
  for (std::size_t i = 0; i < layers.size(); ++i)
    if (!layers[i].is_like_another(i)) own.push_back(i);
  for (const auto first : own)
    for (std::size_t i = 0; i < layers.size(); ++i)
      if (layers[i].is_like_another(i) && layers[i].like == first) alike.push_back(i);
  own.insert(own.end(), alike.begin(), alike.end());
  return own;
}

}  // namespace

void join_equal_inputs(std::vector<EvaLayer>& layers, const std::vector<std::string>& keys) {
  std::map<std::string, std::size_t> first;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i].like = first.try_emplace(keys[i], i).first->second;
    auto& most = layers[layers[i].like].components;
    most = std::max(most, layers[i].components);
  }
  for (auto& layer : layers) layer.components = layers[layer.like].components;
}

std::vector<std::int64_t> spread_ranks(const std::vector<EvaLayer>& layers, const std::vector<at::Tensor>& shares) {
  std::vector<at::Tensor> values;
  std::vector<std::size_t> owners;  // of each value
  std::int64_t budget = 0;
  const auto order = in_order(layers);
  for (const auto i : order) {
    values.push_back(shares[layers[i].like].narrow(0, 0, layers[i].components));
    owners.insert(owners.end(), static_cast<std::size_t>(layers[i].components), i);
    budget += layers[i].rank;
  }
  const auto best = at::argsort(at::cat(values), /*stable=*/true, /*dim=*/0, /*descending=*/true);
  std::vector<std::int64_t> ranks(layers.size(), 0);
  for (std::int64_t k = 0; k < std::min(budget, best.numel()); ++k)
    ++ranks[owners[static_cast<std::size_t>(best[k].item<std::int64_t>())]];
  for (const auto i : order)  // of layers with the same inputs the first has the highest rank
    if (ranks[layers[i].like] < ranks[i]) std::swap(ranks[layers[i].like], ranks[i]);
  return ranks;
}

Lora with_ranks(const Lora& given, const std::vector<EvaLayer>& layers, const std::vector<std::int64_t>& ranks,
                const std::vector<std::string>& others) {
  Lora out = given;
  out.init_lora_weights = "true";
  out.eva_config = nullptr;
  out.target_regex.clear();
  out.target_modules.clear();
  out.rank_pattern.clear();
  out.alpha_pattern.clear();
  const auto take = [&](const std::string& name, std::int64_t rank, double alpha) {
    out.target_modules.push_back(name);
    if (rank != out.r) out.rank_pattern.emplace_back(name, rank);
    if (alpha != out.lora_alpha) out.alpha_pattern.emplace_back(name, alpha);
  };
  const auto alpha_of = [&](const std::string& name) {
    return by_pattern(name, given.alpha_pattern, given.lora_alpha, "alpha_pattern");
  };
  const bool scales = read_eva_settings(given.eva_config).adjust_scaling_factors;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& [name, asked, components, like] = layers[i];
    const auto more = scales ? static_cast<double>(ranks[i]) / static_cast<double>(asked) : 1.0;
    if (ranks[i] > 0) take(name, ranks[i], alpha_of(name) * more);
  }
  for (const auto& name : others) take(name, given.rank_of(name), alpha_of(name));
  if (out.target_modules.empty()) throw Error("EVA gave no layer a rank");
  return out;
}

}  // namespace tessera::peft
