#pragma once
// JSON in and out, as Python's json module reads and writes it.
#include <optional>
#include <string>
#include <string_view>

#include "chat/jinja/value.h"

namespace tessera::chat {

/// Objects keep their order, integers of any size stay exact. ValueError with the byte at fault; limit error above
/// kMaxNesting levels.
Value parse_json(std::string_view text);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool escape_line_separators = false;  // U+0085, U+2028, U+2029: many readers break lines there
  std::optional<std::string> indent;    // what one level is indented by
  std::string item_separator = ", ", key_separator = ": ";
};
/// TypeError "Object of type X is not JSON serializable".
std::string dump_json(const Value& value, const JsonStyle& style = {});

}  // namespace tessera::chat
