#pragma once
// Changes of JSON lines: of one line as JSON, or of the lines.
#include <vector>

#include "fuzz/json_tree.h"

namespace tessera::fuzz {

inline std::optional<std::string> changed_json_lines(std::string_view text, Random& random) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  auto* line = change_list(lines, random);
  if (line != nullptr) {
    const auto changed = changed_json(*line, random);
    *line = changed ? *changed : changed_bytes(std::move(*line));
  }
  std::string out;
  for (const auto& one : lines) out += one + "\n";
  return out;
}

}  // namespace tessera::fuzz
