// Filters that apply other filters and tests to each item.
#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/merge_sort.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"

namespace tessera::chat {
namespace {

Value map(Runtime& runtime, const Value& input, Arguments arguments) {
  if (!truth(input)) return make_iterator({});
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    const BoundArguments bound("map", std::move(arguments), {"attribute", "default"});
    if (!bound.has(0)) value_error("map requires a filter argument");
    for (const auto& item : iterate(input)) out.push_back(get_path(item, bound[0], bound[1]));
    return make_iterator(std::move(out));
  }
  const std::string name = to_text(arguments.positional[0]);
  arguments.positional.erase(arguments.positional.begin());
  for (const auto& item : iterate(input)) out.push_back(runtime.filter(name, item, arguments));
  return make_iterator(std::move(out));
}

template <bool wanted, bool by_attribute>
Value select(Runtime& runtime, const Value& input, Arguments arguments) {
  if (!truth(input)) return make_iterator({});
  auto& rest = arguments.positional;
  Value path;
  if (by_attribute) {
    if (rest.empty()) value_error("Missing parameter for attribute name");
    path = rest[0];
    rest.erase(rest.begin());
  }
  std::string name;
  if (!rest.empty()) {
    name = to_text(rest[0]);
    rest.erase(rest.begin());
  }
  std::vector<Value> out;
  for (auto& item : iterate(input)) {
    const Value value = get_path(item, path);
    if ((name.empty() ? truth(value) : runtime.test(name, value, arguments)) == wanted) out.push_back(std::move(item));
  }
  return make_iterator(std::move(out));
}

Value make_group(Value key, std::vector<Value> members) {
  auto tuple = std::make_shared<Tuple>();
  tuple->held.add(256);
  tuple->items = {std::move(key), make_list(std::move(members))};
  tuple->depth = std::max(depth_of(tuple->items[0]), depth_of(tuple->items[1])) + 1;
  tuple->group = true;
  return std::shared_ptr<const Tuple>(std::move(tuple));
}

Value groupby(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_groupby", std::move(arguments), {"attribute", "default", "case_sensitive"}, 1);
  struct Item {
    Value key, shown, value;
    Held held = Held(128);
  };
  std::vector<Item> items;
  for (auto& item : iterate(input)) {
    Value shown = get_path(item, bound[0], bound[1]);
    items.push_back({bound.truth(2, false) ? shown : ignore_case(shown), shown, std::move(item)});
  }
  merge_sort(items, [&](const Item& a, const Item& b) { return less(a.key, b.key); });
  std::vector<Value> groups;
  for (std::size_t at = 0; at < items.size();) {
    std::vector<Value> members;
    std::size_t end = at;
    for (; end < items.size() && equal(items[end].key, items[at].key); ++end) members.push_back(items[end].value);
    groups.push_back(make_group(items[at].shown, std::move(members)));
    at = end;
  }
  return make_list(std::move(groups));
}

}  // namespace

const std::vector<FilterEntry>& select_filters() {
  static const std::vector<FilterEntry> table{
      {"groupby", groupby},
      {"map", map},
      {"reject", select<false, false>},
      {"rejectattr", select<false, true>},
      {"select", select<true, false>},
      {"selectattr", select<true, true>},
  };
  return table;
}

}  // namespace tessera::chat
