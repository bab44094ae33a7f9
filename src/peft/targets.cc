#include "peft/targets.h"

#include <algorithm>
#include <cctype>
#include <regex>

#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

bool is_all_linear(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text == "all-linear";
}

bool in_suffixes(const std::string& name, const std::vector<std::string>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const auto& key) { return has_suffix(name, key); });
}

// The number after the first list of layers in the name, for example 3 in "encoder.block.3.layer.0.SelfAttention.q".
bool in_chosen_layer(const std::string& name, const PeftConfig& config) {
  if (config.layers_to_transform.empty()) return true;
  std::smatch found;
  const auto layer_is_chosen = [&] {
    const auto index = std::stoll(found[1].str());
    const auto& chosen = config.layers_to_transform;
    return std::find(chosen.begin(), chosen.end(), index) != chosen.end();
  };
  if (config.layers_pattern.empty()) {
    return std::regex_match(name, found, std::regex(R"((?:.*?)\.[^.]*\.(\d+)\..*)")) && layer_is_chosen();
  }
  for (const auto& pattern : config.layers_pattern) {
    if (std::regex_match(name, found, std::regex("(?:.*?)\\." + pattern + "\\.(\\d+)\\..*")) ||
        std::regex_match(name, found, std::regex(pattern + "\\.(\\d+)\\..*"))) {
      return layer_is_chosen();
    }
  }
  return false;
}

}  // namespace

bool matches(const std::string& name, const std::string& pattern, const char* key) {
  try {
    return std::regex_match(name, std::regex(pattern, std::regex::ECMAScript));
  } catch (const std::regex_error& e) {
    throw ConfigError(std::string(key) + ": '" + pattern + "' is not a valid regular expression: " + e.what(), key);
  }
}

bool has_suffix(const std::string& name, const std::string& key) {
  return name == key || name.ends_with("." + key);
}

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
  if (in_suffixes(name, config.exclude_modules) || is_saved(name, config)) return false;
  if (!config.exclude_regex.empty() && matches(name, config.exclude_regex, "exclude_modules")) return false;
  if (!config.target_regex.empty()) return matches(name, config.target_regex, "target_modules");
  const auto& names = config.target_modules;
  if (std::find(names.begin(), names.end(), name) != names.end()) return true;
  return in_suffixes(name, names) && in_chosen_layer(name, config);
}

}  // namespace tessera::peft
