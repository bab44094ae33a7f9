// The methods of strings that make strings.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/methods.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/string_format.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"
#include "chat/jinja/text_search.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

using Points = std::u32string;

template <Points (*change)(std::u32string_view)>
Value changed_self(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("method", std::move(arguments), {});
  return change(to_points(self.text()));
}

template <bool left, bool right>
Value strip(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("strip", std::move(arguments), {""});
  return strip_text(self.text(), bound[0], left, right);
}

std::string backwards(std::string_view text) {
  return {text.rbegin(), text.rend()};
}

// Bytes and code points backwards: what str.rsplit leaves at the front is left at the end here.
Value turned_back(std::vector<Value> parts) {
  std::reverse(parts.begin(), parts.end());
  return make_list(std::move(parts));
}

template <bool right>
Value split(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("split", std::move(arguments), {"sep", "maxsplit"});
  const auto limit = bound.integer(1, -1);
  if (bound[0].is_none()) {
    auto points = to_points(self.text());
    if (!right) return make_list(split_space(points, limit));
    std::reverse(points.begin(), points.end());
    auto parts = split_space(points, limit);
    for (auto& part : parts) {
      auto turned = to_points(part.text());
      std::reverse(turned.begin(), turned.end());
      part = Value(turned);
    }
    return turned_back(std::move(parts));
  }
  const auto& given = required_text(bound[0], "split");
  if (given.empty()) value_error("empty separator");
  require_memory(static_cast<std::int64_t>(self.text().size()));
  const std::string separator = right ? backwards(given) : given;
  const std::string text = right ? backwards(self.text()) : self.text();
  std::vector<Value> parts;
  const auto add = [&](std::string_view part) { parts.emplace_back(right ? backwards(part) : std::string(part)); };
  std::size_t from = 0;
  while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
    const auto at = find_first(text, separator, from);
    if (at == std::string_view::npos) break;
    add(std::string_view(text).substr(from, at - from));
    from = at + separator.size();
  }
  add(std::string_view(text).substr(from));
  return right ? turned_back(std::move(parts)) : make_list(std::move(parts));
}

Value splitlines(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("splitlines", std::move(arguments), {"keepends"});
  const bool keep_ends = bound.integer(0, 0) != 0;
  std::vector<Value> out;
  std::string_view rest = self.text(), line, whole;
  while (take_line(rest, line, whole)) out.emplace_back(keep_ends ? whole : line);
  return make_list(std::move(out));
}

template <bool right>
Value partition(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("partition", std::move(arguments), {""}, 1);
  const auto& separator = required_text(bound[0], "partition");
  if (separator.empty()) value_error("empty separator");
  const std::string& text = self.text();
  const auto at = right ? find_last(text, separator) : find_first(text, separator);
  if (at == std::string::npos) return right ? make_tuple({"", "", self}) : make_tuple({self, "", ""});
  return make_tuple({text.substr(0, at), separator, text.substr(at + separator.size())});
}

Value join_method(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("join", std::move(arguments), {""}, 1);
  if (!is_iterable(bound[0])) type_error("can only join an iterable");
  TextBuilder out;
  std::int64_t i = 0;
  for (const auto& item : iterate(bound[0])) {
    if (!item.is_text())
      type_error(fmt::format("sequence item {}: expected str instance, {} found", i, type_name(item)));
    if (i++ > 0) out += self.text();
    out += item.text();
  }
  return out.take();
}

Value replace_method(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("replace", std::move(arguments), {"", "", ""}, 2);
  return replace_text(self.text(), required_text(bound[0], "replace"), required_text(bound[1], "replace"),
                      bound.integer(2, -1));
}

template <bool prefix>
Value remove_affix(Runtime&, const Value& self, Arguments arguments) {
  const char* name = prefix ? "removeprefix" : "removesuffix";
  const BoundArguments bound(name, std::move(arguments), {""}, 1);
  const auto& affix = required_text(bound[0], name);
  const std::string& text = self.text();
  if (prefix) return text.starts_with(affix) ? text.substr(affix.size()) : text;
  return text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text;
}

enum class Align { kLeft, kRight, kCenter };
template <Align align>
Value pad(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("pad", std::move(arguments), {"", ""}, 1);
  const auto fill = bound.has(1) ? to_points(required_text(bound[1], "pad")) : Points(1, U' ');
  if (fill.size() != 1) type_error("The fill character must be exactly one character long");
  const auto width = bound.integer(0, 0);
  if (align == Align::kCenter) return center_text(self.text(), width, fill[0]);
  const auto margin = width - length(self);
  TextBuilder out;
  if (align == Align::kRight) out.repeat(to_utf8(fill), margin);
  out += self.text();
  if (align == Align::kLeft) out.repeat(to_utf8(fill), margin);
  return out.take();
}

Value zfill(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("zfill", std::move(arguments), {""}, 1);
  const std::string_view text = self.text();
  const std::size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  TextBuilder out;
  out += text.substr(0, sign);
  out.repeat("0", bound.integer(0, 0) - length(self));
  out += text.substr(sign);
  return out.take();
}

Value expandtabs(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("expandtabs", std::move(arguments), {"tabsize"});
  const auto size = bound.integer(0, 8);
  TextBuilder out;
  std::int64_t column = 0;
  for (char32_t c : to_points(self.text())) {
    if (c == '\t') {
      const auto blanks = size > 0 ? size - column % size : 0;
      out.repeat(" ", blanks);
      column += blanks;
    } else {
      out += c;
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return out.take();
}

// The one code point of a text.
char32_t only_point(const Value& text, const char* message) {
  const auto points = to_points(text.text());
  if (points.size() != 1) value_error(message);
  return points[0];
}

/// A dictionary for translate(): of another one, or of two texts of equal length and a third whose characters go.
Value maketrans(Runtime&, const Value&, Arguments arguments) {
  const BoundArguments bound("maketrans", std::move(arguments), {"", "", ""}, 1);
  Dict out;
  const auto code = [](char32_t c) { return Value(static_cast<std::int64_t>(c)); };
  if (!bound.has(1)) {
    const auto* dict = bound[0].get<DictPtr>();
    if (dict == nullptr) type_error("if you give only one argument to maketrans it must be a dict");
    for (const auto& [key, value] : (*dict)->items()) {
      if (!key.is_text() && !key.integer()) type_error("keys in translate table must be strings or integers");
      out.set(key.is_text() ? code(only_point(key, "string keys in translate table must be of length 1")) : key, value);
    }
    return make_dict(std::move(out));
  }
  const auto from = to_points(required_text(bound[0], "maketrans")),
             to = to_points(required_text(bound[1], "maketrans"));
  if (from.size() != to.size()) value_error("the first two maketrans arguments must have equal length");
  for (std::size_t i = 0; i < from.size(); ++i) out.set(code(from[i]), code(to[i]));
  if (bound.has(2))
    for (char32_t c : to_points(required_text(bound[2], "maketrans"))) out.set(code(c), Value());
  return make_dict(std::move(out));
}

/// By code point: a text, another code point, or none for nothing. What the table lacks stays.
Value translate(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("translate", std::move(arguments), {""}, 1);
  const Value& table = bound[0];
  require_defined(table);
  const bool sequence = table.is_text() || table.is<ListPtr>() || table.is<TuplePtr>() || table.is<Range>();
  if (!table.is<DictPtr>() && !sequence) type_error(fmt::format("'{}' object is not subscriptable", type_name(table)));
  TextBuilder out;
  for (const char32_t c : to_points(self.text())) {
    const Value now = get_item(table, static_cast<std::int64_t>(c));
    if (now.is_undefined()) {
      out += c;
    } else if (now.is_text()) {
      out += now.text();
    } else if (!now.is_none()) {
      if (!now.integer()) type_error("character mapping must return integer, None or str");
      const auto point = as_index(now);
      if (point < 0 || point > 0x10FFFF) value_error("character mapping must be in range(0x110000)");
      out += static_cast<char32_t>(point);
    }
  }
  return out.take();
}

Value format_method(Runtime&, const Value& self, Arguments arguments) {
  return format_braces(self, arguments);
}

Value format_map(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("format_map", std::move(arguments), {""}, 1);
  const auto* dict = bound[0].get<DictPtr>();
  if (dict == nullptr) type_error(fmt::format("'{}' object is not a mapping", type_name(bound[0])));
  Arguments named;
  for (const auto& [key, value] : (*dict)->items())
    if (key.is_text()) named.named.emplace_back(key.text(), value);
  return format_braces(self, named);
}

Value encode(Runtime&, const Value&, Arguments) {
  type_error("str.encode is not supported: chat templates have no bytes here");
}

}  // namespace

const std::vector<MethodEntry>& text_changes() {
  static const std::vector<MethodEntry> table{
      {"capitalize", changed_self<capitalize>},
      {"casefold", changed_self<casefold>},
      {"center", pad<Align::kCenter>},
      {"encode", encode},
      {"expandtabs", expandtabs},
      {"format", format_method},
      {"format_map", format_map},
      {"join", join_method},
      {"ljust", pad<Align::kLeft>},
      {"lower", changed_self<lower>},
      {"lstrip", strip<true, false>},
      {"maketrans", maketrans},
      {"partition", partition<false>},
      {"removeprefix", remove_affix<true>},
      {"removesuffix", remove_affix<false>},
      {"replace", replace_method},
      {"rjust", pad<Align::kRight>},
      {"rpartition", partition<true>},
      {"rsplit", split<true>},
      {"rstrip", strip<false, true>},
      {"split", split<false>},
      {"splitlines", splitlines},
      {"strip", strip<true, true>},
      {"swapcase", changed_self<swapcase>},
      {"title", changed_self<title>},
      {"translate", translate},
      {"upper", changed_self<upper>},
      {"zfill", zfill},
  };
  return table;
}

std::vector<MethodEntry> text_methods() {
  auto all = text_changes();
  all.insert(all.end(), text_queries().begin(), text_queries().end());
  return all;
}

Method find_text_method(std::string_view name) {
  static const auto* table = [] {
    auto* all = new std::unordered_map<std::string_view, Method>();
    for (const auto& entry : text_methods()) all->emplace(entry.name, entry.method);
    return all;
  }();
  const auto it = table->find(name);
  return it == table->end() ? nullptr : it->second;
}

}  // namespace tessera::chat
