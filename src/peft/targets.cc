#include "peft/targets.h"

#include <algorithm>
#include <cctype>

#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

bool is_all_linear(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text == "all-linear";
}

// The number after the first list of layers in the name, for example 3 in "encoder.block.3.layer.0.SelfAttention.q".
bool in_chosen_layer(const std::string& name, const PeftConfig& config) {
  if (config.layers_to_transform.empty()) return true;
  const auto layer_after = [&](const std::string& list) {
    return Pattern(list + R"(\.(?<layer>\d+)\..*)", "layers_pattern").group(name, "layer");
  };
  std::optional<std::string> layer;
  if (config.layers_pattern.empty()) layer = layer_after(R"(.*?\.[^.]*)");
  for (const auto& pattern : config.layers_pattern) {
    layer = layer_after("(?:.*?\\.)?" + pattern);
    if (layer) break;
  }
  const auto& chosen = config.layers_to_transform;
  return layer &&
         std::any_of(chosen.begin(), chosen.end(), [&](auto index) { return std::to_string(index) == *layer; });
}

}  // namespace

bool wants_all_linear(const PeftConfig& config) {
  return is_all_linear(config.target_regex) ||
         (config.target_modules.size() == 1 && is_all_linear(config.target_modules[0]));
}

// PEFT saves a module whose name ends with a key, also in the middle of a word ("head" finds "lm_head").
bool is_saved(const std::string& name, const PeftConfig& config) {
  for (const auto& key : config.modules_to_save) {
    for (std::size_t at = name.find(key); at != std::string::npos; at = name.find(key, at + 1)) {
      const auto end = at + key.size();
      if (end == name.size() || name[end] == '.') return true;
    }
  }
  return false;
}

bool is_target(const std::string& name, const PeftConfig& config) {
  if (has_suffix(name, config.exclude_modules) || is_saved(name, config)) return false;
  if (!config.exclude_regex.empty() && Pattern(config.exclude_regex, "exclude_modules").matches(name)) return false;
  if (!config.target_regex.empty()) return Pattern(config.target_regex, "target_modules").matches(name);
  const auto& names = config.target_modules;
  if (std::find(names.begin(), names.end(), name) != names.end()) return true;
  return has_suffix(name, names) && in_chosen_layer(name, config);
}

}  // namespace tessera::peft
