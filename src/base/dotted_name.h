#pragma once
// Names of modules and parameters: parts joined by dots.
#include <algorithm>
#include <string>
#include <vector>

namespace tessera {

/// "q_proj" of "layers.0.self_attn.q_proj".
inline std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

/// True when `name` is `key` or ends with "." + key; key: one part or several.
inline bool has_suffix(const std::string& name, const std::string& key) {
  return name == key || name.ends_with("." + key);
}

/// True for one of the keys.
inline bool has_suffix(const std::string& name, const std::vector<std::string>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) { return has_suffix(name, key); });
}

}  // namespace tessera
