#pragma once
// Documents as PyYAML's safe_dump writes them, which is how accelerate writes its config file, and back with types.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "config/document.h"

namespace tessera::config {

/// Keys sorted, two spaces a level, texts quoted where a plain one would be read as something else. Without null
/// values.
std::string to_yaml_text(const nlohmann::json& document);

/// A tree with types: what stands without quotes is a boolean, a number or null where YAML 1.1 (PyYAML) reads one.
nlohmann::json typed(const Node& node);

/// A plain scalar, likewise.
nlohmann::json typed_scalar(const std::string& text);

}  // namespace tessera::config
