#include "base/json_text.h"

#include <nlohmann/json.hpp>

namespace tessera {

std::string json_text(const nlohmann::json& value, int indent, bool is_ascii) {
  return value.dump(indent, ' ', is_ascii, nlohmann::json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& value, int indent, bool is_ascii) {
  return value.dump(indent, ' ', is_ascii, nlohmann::json::error_handler_t::replace);
}

}  // namespace tessera
