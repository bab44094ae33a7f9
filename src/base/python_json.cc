#include "base/python_json.h"

#include <string_view>

namespace tessera {

std::string without_non_numbers(const std::string& json) {
  std::string out;
  out.reserve(json.size());
  bool in_text = false;
  for (std::size_t i = 0; i < json.size();) {
    std::string_view found;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
      if (!in_text && json.compare(i, word.size(), word) == 0) found = word;
    if (!found.empty()) {
      out += "null";
      i += found.size();
      continue;
    }
    if (in_text && json[i] == '\\' && i + 1 < json.size())
      out += json[i++];
    else if (json[i] == '"')
      in_text = !in_text;
    out += json[i++];
  }
  return out;
}

}  // namespace tessera
