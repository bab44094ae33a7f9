#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <random>

#include "chat/jinja/arithmetic.h"
#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/merge_sort.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

// By these keys, in this direction, equal ones in the order they have.
void sort_by(std::vector<Value>& items, const std::vector<Value>& keys, bool reverse) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  merge_sort(order,
             [&](std::size_t a, std::size_t b) { return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]); });
  auto out = room_for(static_cast<std::int64_t>(items.size()));
  for (std::size_t i : order) out.push_back(items[i]);
  items = std::move(out);
}

Value plain_or_lower(const Value& value, bool case_sensitive) {
  return case_sensitive ? value : ignore_case(value);
}

Value length_filter(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments none("len", std::move(arguments), {});
  return length(input);
}

Value list(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  return make_list(iterate(input));
}

// The item at index 0 or -1 of anything that can be walked.
std::optional<Value> at_end_of(const Value& input, std::int64_t index) {
  if (input.is_text() || input.is<ListPtr>() || input.is<TuplePtr>() || input.is<Range>()) {
    const Value found = get_item(input, index);
    return found.is_undefined() ? std::nullopt : std::optional<Value>(found);
  }
  const auto items = iterate(input);
  if (items.empty()) return std::nullopt;
  return index == 0 ? items.front() : items.back();
}

Value first(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  if (const auto* iterator = input.get<IteratorPtr>(); iterator && (*iterator)->next < (*iterator)->items.size())
    return (*iterator)->items[(*iterator)->next++];
  if (const auto found = at_end_of(input, 0)) return *found;
  return make_undefined("No first item, sequence was empty.");
}

Value last(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  if (input.is<IteratorPtr>()) type_error("'generator' object is not reversible");
  if (const auto found = at_end_of(input, -1)) return *found;
  return make_undefined("No last item, sequence was empty.");
}

Value random(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  const auto size = length(input);
  if (size == 0) return make_undefined("No random item, sequence was empty.");
  constexpr std::int64_t kDeviceWork = 5000;  // it may be opened and read
  spend(kDeviceWork);
  std::random_device device;
  return iterate(input)[std::uniform_int_distribution<std::size_t>(0, static_cast<std::size_t>(size) - 1)(device)];
}

Value join(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_join", std::move(arguments), {"d", "attribute"});
  const std::string separator = bound.text(0, "");
  TextBuilder out;
  bool first_item = true;
  for (const auto& item : iterate(input)) {
    if (!std::exchange(first_item, false)) out += separator;
    out += to_text(get_path(item, bound[1]));
  }
  return out.take();
}

Value reverse(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  if (input.is_text()) {
    auto points = to_points(input.text());
    std::reverse(points.begin(), points.end());
    return made_of(input, to_utf8(points));
  }
  if (!is_iterable(input)) type_error("argument must be iterable");
  auto items = iterate(input);
  std::reverse(items.begin(), items.end());
  return input.is<IteratorPtr>() ? make_list(std::move(items)) : make_iterator(std::move(items));
}

Value sort(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_sort", std::move(arguments), {"reverse", "case_sensitive", "attribute"});
  auto items = iterate(input);
  std::vector<Value> paths{bound[2]};
  if (bound.has(2) && bound[2].is_text()) {
    paths.clear();
    std::string_view rest = bound[2].text();
    for (auto comma = rest.find(','); comma != rest.npos; comma = rest.find(',')) {
      paths.emplace_back(rest.substr(0, comma));
      rest = rest.substr(comma + 1);
    }
    paths.emplace_back(rest);
  }
  std::vector<Value> keys;
  for (const auto& item : items) {
    std::vector<Value> parts;
    for (const auto& path : paths) parts.push_back(plain_or_lower(get_path(item, path), bound.truth(1, false)));
    keys.push_back(make_tuple(std::move(parts)));
  }
  sort_by(items, keys, bound.truth(0, false));
  return make_list(std::move(items));
}

Value dictsort(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_dictsort", std::move(arguments), {"case_sensitive", "by", "reverse"});
  const std::string by = bound.text(1, "key");
  if (by != "key" && by != "value") value_error("You can only sort by either \"key\" or \"value\"");
  require_defined(input);
  const auto* dict = input.get<DictPtr>();
  if (dict == nullptr) type_error(fmt::format("'{}' object has no attribute 'items'", type_name(input)));
  auto items = iterate(View{View::kItems, *dict});
  std::vector<Value> keys;
  for (const auto& [key, value] : (*dict)->items())
    keys.push_back(plain_or_lower(by == "key" ? key : value, bound.truth(0, false)));
  sort_by(items, keys, bound.truth(2, false));
  return make_list(std::move(items));
}

Value unique(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_unique", std::move(arguments), {"case_sensitive", "attribute"});
  Dict seen;
  std::vector<Value> out;
  for (auto& item : iterate(input)) {
    const Value key = plain_or_lower(get_path(item, bound[1]), bound.truth(0, false));
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value());
    out.push_back(std::move(item));
  }
  return make_iterator(std::move(out));
}

template <bool largest>
Value extreme(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound(largest ? "do_max" : "do_min", std::move(arguments), {"case_sensitive", "attribute"});
  const auto items = iterate(input);
  if (items.empty()) return make_undefined("No aggregated item, sequence was empty.");
  const auto key = [&](const Value& item) { return plain_or_lower(get_path(item, bound[1]), bound.truth(0, false)); };
  const Value* best = &items[0];
  Value best_key = key(items[0]);
  for (std::size_t i = 1; i < items.size(); ++i) {
    const Value other = key(items[i]);
    if (!(largest ? less(best_key, other) : less(other, best_key))) continue;
    best = &items[i];
    best_key = other;
  }
  return *best;
}

Value sum(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_sum", std::move(arguments), {"attribute", "start"});
  Value out = bound.get(1, std::int64_t{0});
  if (out.is_text()) type_error("sum() can't sum strings [use ''.join(seq) instead]");
  for (const auto& item : iterate(input)) out = arithmetic("+", out, get_path(item, bound[0]));
  return out;
}

Value batch(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_batch", std::move(arguments), {"linecount", "fill_with"}, 1);
  std::vector<Value> rows, row;
  for (const auto& item : iterate(input)) {
    if (equal(std::ssize(row), bound[0])) {
      rows.push_back(make_list(std::move(row)));
      row.clear();
    }
    row.push_back(item);
  }
  if (!row.empty()) {
    if (!bound[1].is_none()) {
      const auto size = bound.integer(0, 1);
      auto whole = room_for(std::clamp(size, std::ssize(row), kMaxItems));
      std::move(row.begin(), row.end(), std::back_inserter(whole));
      row = std::move(whole);
      while (static_cast<std::int64_t>(row.size()) < size) row.push_back(bound[1]);
    }
    rows.push_back(make_list(std::move(row)));
  }
  return make_iterator(std::move(rows));
}

Value slice(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_slice", std::move(arguments), {"slices", "fill_with"}, 1);
  const auto items = iterate(input);
  const auto slices = bound.integer(0, 1), size = static_cast<std::int64_t>(items.size());
  if (slices == 0) value_error("integer division or modulo by zero");
  auto out = room_for(std::clamp<std::int64_t>(slices, 0, kMaxItems));
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < slices; ++i) {
    const bool extra = i < size % slices;
    const auto end = begin + size / slices + (extra ? 1 : 0);
    auto part = room_for(end - begin + 1);
    part.insert(part.end(), items.begin() + begin, items.begin() + end);
    if (!bound[1].is_none() && !extra) part.push_back(bound[1]);
    out.push_back(make_list(std::move(part)));
    begin = end;
  }
  return make_iterator(std::move(out));
}

Value items(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  if (input.is_undefined()) return make_iterator({});
  const auto* dict = input.get<DictPtr>();
  if (dict == nullptr) type_error("Can only get item pairs from a mapping.");
  return make_iterator(iterate(View{View::kItems, *dict}));
}

Value default_value(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_default", std::move(arguments), {"default_value", "boolean"});
  const bool absent = input.is_undefined() || (bound.truth(1, false) && !truth(input));
  return absent ? bound.get(0, "") : input;
}

Value attribute(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_attr", std::move(arguments), {"name"}, 1);
  const auto& name = required_text(bound[0], "attr");
  require_defined(input);
  if (find_attribute(input, name)) return get_attribute(input, name);
  return make_undefined(
      fmt::format("{} has no attribute {}", repr_text(type_name(input) + " object"), repr_text(name)));
}

}  // namespace

const std::vector<FilterEntry>& sequence_filters() {
  static const std::vector<FilterEntry> table{
      {"attr", attribute},    {"batch", batch},           {"count", length_filter},
      {"d", default_value},   {"default", default_value}, {"dictsort", dictsort},
      {"first", first},       {"items", items},           {"join", join},
      {"last", last},         {"length", length_filter},  {"list", list},
      {"max", extreme<true>}, {"min", extreme<false>},    {"random", random},
      {"reverse", reverse},   {"slice", slice},           {"sort", sort},
      {"sum", sum},           {"unique", unique},
  };
  return table;
}

}  // namespace tessera::chat
