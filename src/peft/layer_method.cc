// What methods that sit in layers have in common: which layers those are.
#include <algorithm>

#include "base/dotted_name.h"
#include "base/nearest.h"
#include "peft/method.h"
#include "peft/targets.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The last parts of the modules' names, each once.
std::vector<std::string> leaves_of(const std::vector<Slot>& all) {
  std::vector<std::string> leaves;
  for (const auto& slot : all) {
    const auto leaf = last_part(slot.name);
    if (std::find(leaves.begin(), leaves.end(), leaf) == leaves.end()) leaves.push_back(leaf);
  }
  return leaves;
}

/// Without what leaves targets out.
PeftConfig unlimited(PeftConfig config) {
  config.exclude_modules.clear();
  config.exclude_regex.clear();
  config.modules_to_save.clear();
  config.layers_to_transform.clear();
  return config;
}

[[noreturn]] void refuse_targets(const std::vector<Slot>& all, const PeftConfig& config) {
  const auto leaves = leaves_of(all);
  const auto wanted = config.target_regex.empty() ? joined(config.target_modules) : config.target_regex;
  if (std::any_of(all.begin(), all.end(), [&](const Slot& slot) { return is_target(slot.name, unlimited(config)); })) {
    throw ConfigError("target_modules: all that '" + wanted +
                          "' matches is left out by exclude_modules, modules_to_save or layers_to_transform",
                      "target_modules");
  }
  throw ConfigError("target_modules: '" + wanted + "' matches no module that takes an adapter; this model has " +
                        joined(leaves) + "; all-linear takes every linear layer but the head" +
                        (config.target_modules.empty() ? "" : did_you_mean(config.target_modules[0], leaves)),
                    "target_modules");
}

// all-linear: every Linear but the output head, and not the embeddings.
bool is_plain_linear(const Slot& slot, const models::ModelConfig& family, const PeftConfig& config) {
  if (!slot.linear || slot.name == family.output_embedding) return false;
  const bool classifier = slot.name == "score" || slot.name == "classifier";
  return !(classifier && config.task_type == "SEQ_CLS");
}

// Each matched module, or an error that helps to name the right ones.
std::vector<Slot> chosen(const nn::HookedModule& model, const models::ModelConfig& family, const PeftConfig& config) {
  const auto all = placed_slots(model);
  auto every_linear = config;
  every_linear.target_modules.clear();
  every_linear.target_regex = ".*";
  std::vector<Slot> out;
  for (const auto& slot : all) {
    const bool match = wants_all_linear(config)
                           ? is_plain_linear(slot, family, config) && is_target(slot.name, every_linear)
                           : is_target(slot.name, config);
    if (match) out.push_back(slot);
  }
  if (out.empty()) refuse_targets(all, config);
  return out;
}

}  // namespace

std::vector<std::string> notes_on_targets(const nn::HookedModule& model, const PeftConfig& config) {
  std::vector<std::string> notes;
  if (wants_all_linear(config)) return notes;
  const auto all = placed_slots(model);
  for (const auto& name : config.target_modules) {
    PeftConfig alone;
    alone.target_modules = {name};
    if (std::any_of(all.begin(), all.end(), [&](const Slot& slot) { return is_target(slot.name, alone); })) continue;
    notes.push_back("target_modules: '" + name + "' matches no module that takes an adapter" +
                    did_you_mean(name, leaves_of(all)) + "; it is left out");
  }
  return notes;
}

void LayerMethod::check() const {
  if (!target_regex.empty() && !layers_to_transform.empty()) {
    throw ConfigError(
        "layers_to_transform goes with a list of target_modules, not with a regular expression or all-linear",
        "layers_to_transform");
  }
  if (!layers_pattern.empty() && layers_to_transform.empty())
    throw ConfigError("layers_pattern needs layers_to_transform", "layers_pattern");
  if (!target_modules.empty() && !target_regex.empty()) {
    throw ConfigError("target_modules: give a list of names or one regular expression, not both", "target_modules");
  }
}

void LayerMethod::resolve(const models::ModelConfig& family) {
  if (!target_modules.empty() || !target_regex.empty()) return;
  target_modules = default_targets(family);
  if (target_modules.empty()) {
    throw ConfigError("target_modules: model type '" + family.model_type + "' has no default targets; name them",
                      "target_modules");
  }
}

std::vector<std::string> LayerMethod::attach(models::Model& model, const models::ModelConfig& family) {
  std::vector<std::string> names;
  fan_in_fan_out = false;  // known from the modules
  const auto slots = chosen(model, family, *this);
  choose(slots);
  for (const auto& slot : slots) {
    attach_to(slot);
    fan_in_fan_out = fan_in_fan_out || (slot.linear && slot.transposed());
    names.push_back(slot.name);
  }
  if (wants_all_linear(*this)) {  // written as the list of what was found, as PEFT does
    target_regex.clear();
    target_modules = names;
  }
  return names;
}

std::map<std::string, Fill> LayerMethod::first_values(const nn::HookedModule& model, std::uint64_t seed) const {
  std::map<std::string, Fill> out;
  for (const auto& slot : adapted_places(model))
    for (auto& [name, fill] : first_values_of(slot, seed)) out[slot.full_name(name)] = std::move(fill);
  return out;
}

}  // namespace tessera::peft
