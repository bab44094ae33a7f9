#include "base/bounded_json.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera {

std::string_view bounded_json(std::string_view text, const std::string& file) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '\0') {
      throw DataError(fmt::format("{}: not valid JSON: a zero byte, at byte {}", file, at + 1), file);
    } else if (c == ']' || c == '}') {
      --depth;
    } else if ((c == '[' || c == '{') && ++depth > kMaxJsonNesting) {
      throw DataError(fmt::format("{}: JSON that nests deeper than {} levels", file, kMaxJsonNesting), file);
    }
  }
  return text;
}

}  // namespace tessera
