#pragma once
// Names of modules and parameters: parts joined by dots.
#include <string>

namespace tessera {

/// "q_proj" of "layers.0.self_attn.q_proj".
inline std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

/// True when `name` is `key` or ends with "." + key; key: one part or several.
inline bool has_suffix(const std::string& name, const std::string& key) {
  return name == key || name.ends_with("." + key);
}

}  // namespace tessera
