#include "chat/filters.h"

#include <fmt/format.h>

#include <unordered_map>

#include "chat/unicode.h"

namespace tessera::chat {

Filter find_filter(std::string_view name) {
  static const auto* table = [] {
    auto* all = new std::unordered_map<std::string_view, Filter>();
    for (const auto* part : {&text_filters(), &sequence_filters(), &select_filters(), &number_filters()})
      for (const auto& entry : *part) all->emplace(entry.name, entry.filter);
    return all;
  }();
  const auto it = table->find(name);
  return it == table->end() ? nullptr : it->second;
}

Value get_path(const Value& value, const Value& path) {
  if (path.is_none()) return value;
  if (!path.is_text()) return get_item(value, path);
  Value out = value;
  std::string_view rest = path.text();
  for (;;) {
    const auto dot = rest.find('.');
    const auto part = rest.substr(0, dot);
    const bool digits = !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == part.npos;
    out = get_item(out, digits ? Value(std::int64_t{std::stoll(std::string(part))}) : Value(part));
    if (dot == std::string_view::npos) return out;
    rest = rest.substr(dot + 1);
  }
}

Value ignore_case(const Value& value) {
  return value.is_text() ? Value(lower(to_points(value.text()))) : value;
}

}  // namespace tessera::chat
