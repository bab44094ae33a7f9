#include "chat/jinja/filters.h"

#include <fmt/format.h>

#include <unordered_map>

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {

std::vector<FilterEntry> all_filters() {
  std::vector<FilterEntry> all;
  for (const auto* part : {&text_filters(), &sequence_filters(), &select_filters(), &number_filters()})
    all.insert(all.end(), part->begin(), part->end());
  return all;
}

Filter find_filter(std::string_view name) {
  static const auto* table = [] {
    auto* all = new std::unordered_map<std::string_view, Filter>();
    for (const auto& entry : all_filters()) all->emplace(entry.name, entry.filter);
    return all;
  }();
  const auto it = table->find(name);
  return it == table->end() ? nullptr : it->second;
}

void no_filter_arguments(Arguments arguments) {
  const BoundArguments none("filter", std::move(arguments), {});
}

Value get_path(const Value& value, const Value& path, const Value& otherwise) {
  if (path.is_none()) return value;
  const auto step = [&](const Value& from, const Value& key) {
    Value out = get_item(from, key);
    return out.is_undefined() && !otherwise.is_none() ? otherwise : out;
  };
  if (!path.is_text()) return step(value, path);
  Value out = value;
  std::string_view rest = path.text();
  for (;;) {
    const auto dot = rest.find('.');
    const auto part = rest.substr(0, dot);
    const bool digits = !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == part.npos;
    out = step(out, digits ? Value(std::int64_t{std::stoll(std::string(part))}) : Value(part));
    if (dot == std::string_view::npos) return out;
    rest = rest.substr(dot + 1);
  }
}

Value ignore_case(const Value& value) {
  return value.is_text() ? Value(lower(to_points(value.text()))) : value;
}

}  // namespace tessera::chat
