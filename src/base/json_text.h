#pragma once
// The one way JSON is written.
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera {

/// The value as JSON text; `indent` below 0 keeps it on one line, `is_ascii` escapes what is not ASCII. Texts that are
/// not UTF-8 (names of files may hold any bytes) get U+FFFD for each malformed part instead of an error.
std::string json_text(const nlohmann::json& value, int indent = -1, bool is_ascii = false);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1, bool is_ascii = false);

}  // namespace tessera
