#include "peft/lora.h"

#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <cmath>

#include "base/grouped.h"
#include "base/nearest.h"
#include "peft/targets.h"
#include "tensor/rng.h"
#include "tensor/storage.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"
#include "tessera/nn/linear.h"

namespace tessera::peft {
namespace {

using LinearByName = std::vector<std::pair<std::string, nn::Linear*>>;

LinearByName linears(nn::HookedModule& model) {
  LinearByName out;
  for (auto& item : model.named_modules("", /*include_self=*/false)) {
    const bool inside_adapter = item.key().find(".lora_") != std::string::npos;
    auto* linear = dynamic_cast<nn::Linear*>(item.value().get());
    if (linear && !inside_adapter) out.emplace_back(item.key(), linear);
  }
  return out;
}

void check_supported(const LoraConfig& c) {
  const auto refuse = [](const std::string& key, const std::string& why) {
    throw ConfigError("LoRA option '" + key + "' " + why, key);
  };
  if (c.r <= 0) refuse("r", "must be positive, found " + std::to_string(c.r));
  if (c.lora_dropout < 0 || c.lora_dropout > 1) refuse("lora_dropout", "must be in [0, 1]");
  if (c.use_dora) refuse("use_dora", "is not supported yet: set it to false");
  if (!c.modules_to_save.empty()) refuse("modules_to_save", "is not supported yet: leave it empty");
  if (c.bias != "none" && c.bias != "all" && c.bias != "lora_only") refuse("bias", "is one of none, all, lora_only");
  if (c.init_lora_weights != "true" && c.init_lora_weights != "false" && c.init_lora_weights != "gaussian") {
    refuse("init_lora_weights", "is one of true, false, gaussian; found '" + c.init_lora_weights + "'");
  }
}

// Each matched module, or an error that helps to name the right ones.
LinearByName chosen(nn::HookedModule& model, const LoraConfig& config) {
  LinearByName out;
  std::vector<std::string> leaves;
  for (const auto& [name, linear] : linears(model)) {
    const auto leaf = name.substr(name.rfind('.') + 1);
    if (std::find(leaves.begin(), leaves.end(), leaf) == leaves.end()) leaves.push_back(leaf);
    const bool all = wants_all_linear(config);
    auto rest = config;
    if (all) rest.target_modules = {name}, rest.target_regex.clear();
    if (all && name == "lm_head") continue;
    if (is_target(name, rest)) out.emplace_back(name, linear);
  }
  if (out.empty()) {
    std::string known, wanted = config.target_regex;
    for (const auto& leaf : leaves) known += (known.empty() ? "" : ", ") + leaf;
    for (const auto& target : config.target_modules) wanted += (wanted.empty() ? "" : ", ") + target;
    throw ConfigError("target_modules: '" + wanted + "' matches no linear module; this model has " + known +
                          (config.target_modules.empty() ? "" : did_you_mean(config.target_modules[0], leaves)),
                      "target_modules");
  }
  return out;
}

void initialise(const std::string& name, const nn::Linear& linear, const LoraConfig& config, std::uint64_t seed) {
  const auto& adapter = *linear.adapter();
  auto a = adapter.a->weight.detach(), b = adapter.b->weight.detach();
  nn::allocate(a);
  nn::allocate(b);
  const auto key_a = tensor::named_key(seed, name + ".lora_A"), key_b = tensor::named_key(seed, name + ".lora_B");
  const auto bound = [](const at::Tensor& w) { return 1.0 / std::sqrt(static_cast<double>(w.size(1))); };
  if (config.init_lora_weights == "gaussian") {
    tensor::fill_normal(a, key_a, 0.0, 1.0 / static_cast<double>(a.size(0)));
  } else {
    tensor::fill_uniform(a, key_a, -bound(a), bound(a));  // Kaiming uniform with a = sqrt(5)
  }
  b.zero_();
  if (config.init_lora_weights == "false") tensor::fill_uniform(b, key_b, -bound(b), bound(b));
}

}  // namespace

double LoraConfig::scaling(std::int64_t rank, double alpha) const {
  return use_rslora ? alpha / std::sqrt(static_cast<double>(rank)) : alpha / static_cast<double>(rank);
}

std::string LoraReport::trainable_line() const {
  return fmt::format("trainable params: {} || all params: {} || trainable%: {:.4f}", grouped(trainable), grouped(total),
                     total == 0 ? 0.0 : 100.0 * static_cast<double>(trainable) / static_cast<double>(total));
}

LoraReport apply_lora(nn::HookedModule& model, const models::ModelConfig& family, const LoraConfig& given,
                      std::uint64_t seed) {
  check_supported(given);
  const auto config = with_default_targets(given, family);
  const auto targets = chosen(model, config);
  for (auto& p : model.parameters()) p.set_requires_grad(false);
  LoraReport report;
  for (const auto& [name, linear] : targets) {
    const auto rank = rank_of(name, config);
    linear->attach_adapter(rank, config.scaling(rank, alpha_of(name, config)), config.lora_dropout);
    initialise(name, *linear, config, seed);
    if (config.bias == "lora_only" && linear->bias.defined()) linear->bias.set_requires_grad(true);
    report.adapted.push_back(name);
  }
  for (auto& item : model.named_parameters()) {
    if (config.bias == "all" && has_suffix(item.key(), "bias")) item.value().set_requires_grad(true);
    report.total += item.value().numel();
    if (item.value().requires_grad()) report.trainable += item.value().numel();
  }
  return report;
}

void merge_lora(nn::HookedModule& model) {
  for (const auto& [name, linear] : linears(model)) {
    if (!linear->adapter()) continue;
    const auto& adapter = *linear->adapter();
    auto weight = linear->weight.detach();
    const auto update = at::mm(adapter.b->weight.detach().to(at::kFloat), adapter.a->weight.detach().to(at::kFloat));
    weight.copy_(weight.to(at::kFloat).add_(update, adapter.scaling));
    linear->remove_adapter();
  }
}

}  // namespace tessera::peft
