#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "chat/bound_arguments.h"
#include "chat/methods.h"
#include "chat/repr.h"
#include "chat/string_format.h"
#include "chat/template_error.h"
#include "chat/unicode.h"

namespace tessera::chat {
namespace {

using Points = std::u32string;

Points points_of(const Value& self) {
  return to_points(self.text());
}

std::string required_text(const Value& value, const char* what) {
  require_defined(value);
  if (!value.is_text()) type_error(fmt::format("{} must be str, not {}", what, type_name(value)));
  return value.text();
}

template <Points (*change)(std::u32string_view)>
Value changed(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("method", std::move(arguments), {});
  return change(points_of(self));
}

template <bool left, bool right>
Value strip(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("strip", std::move(arguments), {"chars"});
  return strip_text(self.text(), bound[0], left, right);
}

// All characters satisfy it, and there is one.
template <bool (*is)(char32_t)>
Value all_are(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("method", std::move(arguments), {});
  const auto points = points_of(self);
  return !points.empty() && std::all_of(points.begin(), points.end(), is);
}

bool is_alnum(char32_t c) {
  return is_alpha(c) || is_numeric(c);
}

Value is_lower_text(Runtime&, const Value& self, Arguments) {
  return is_cased_as(self.text(), is_lower, is_upper);
}

Value is_upper_text(Runtime&, const Value& self, Arguments) {
  return is_cased_as(self.text(), is_upper, is_lower);
}

Value is_title_text(Runtime&, const Value& self, Arguments) {
  bool inside = false, any = false;
  for (char32_t c : points_of(self)) {
    const bool high = is_upper(c) || is_title(c), low = is_lower(c);
    if ((high && inside) || (low && !inside)) return false;
    inside = high || low;
    any = any || inside;
  }
  return any;
}

Value is_ascii_text(Runtime&, const Value& self, Arguments) {
  return is_ascii(self.text());
}

Value is_printable_text(Runtime&, const Value& self, Arguments) {
  const auto points = points_of(self);
  return std::all_of(points.begin(), points.end(), is_printable);
}

Value is_identifier(Runtime&, const Value& self, Arguments) {
  const auto points = points_of(self);
  return !points.empty() && is_identifier_start(points[0]) &&
         std::all_of(points.begin(), points.end(), is_identifier_part);
}

// The part of the text that optional start and end choose; null where start lies behind the end.
std::optional<Points> window(const Points& text, const Value& start, const Value& stop, std::size_t& offset) {
  const auto size = static_cast<std::int64_t>(text.size());
  const auto clamp = [&](const Value& value, std::int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const auto at = as_index(value);
    return std::max<std::int64_t>(at < 0 ? at + size : at, 0);
  };
  const auto begin = clamp(start, 0), end = std::min(clamp(stop, size), size);
  if (begin > end) return std::nullopt;
  offset = static_cast<std::size_t>(begin);
  return text.substr(offset, static_cast<std::size_t>(end - begin));
}

template <bool prefix>
Value starts_or_ends(Runtime&, const Value& self, Arguments arguments) {
  const char* name = prefix ? "startswith" : "endswith";
  const BoundArguments bound(name, std::move(arguments), {"affix", "start", "end"}, 1);
  std::size_t offset = 0;
  const auto text = window(points_of(self), bound[1], bound[2], offset);
  require_defined(bound[0]);
  const auto* tuple = bound[0].get<TuplePtr>();
  if (tuple == nullptr && !bound[0].is_text())
    type_error(fmt::format("{} first arg must be str or a tuple of str, not {}", name, type_name(bound[0])));
  const std::vector<Value> choices = tuple ? (*tuple)->items : std::vector<Value>{bound[0]};
  return text && std::any_of(choices.begin(), choices.end(), [&](const Value& choice) {
           const auto affix = to_points(required_text(choice, "the prefix or suffix"));
           return prefix ? text->starts_with(affix) : text->ends_with(affix);
         });
}

template <bool last, bool must>
Value find(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("find", std::move(arguments), {"sub", "start", "end"}, 1);
  const auto wanted = to_points(required_text(bound[0], "find() argument 1"));
  std::size_t offset = 0;
  const auto text = window(points_of(self), bound[1], bound[2], offset);
  const auto at = !text ? Points::npos : last ? text->rfind(wanted) : text->find(wanted);
  if (at != Points::npos) return static_cast<std::int64_t>(at + offset);
  if (must) value_error("substring not found");
  return std::int64_t{-1};
}

Value count(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("count", std::move(arguments), {"sub", "start", "end"}, 1);
  const auto wanted = to_points(required_text(bound[0], "count() argument 1"));
  std::size_t offset = 0;
  const auto text = window(points_of(self), bound[1], bound[2], offset);
  if (!text) return std::int64_t{0};
  if (wanted.empty()) return static_cast<std::int64_t>(text->size() + 1);
  std::int64_t found = 0;
  for (auto at = text->find(wanted); at != Points::npos; at = text->find(wanted, at + wanted.size())) ++found;
  return found;
}

std::vector<Value> split_right_space(Points text, std::int64_t limit) {
  std::reverse(text.begin(), text.end());
  auto parts = split_space(text, limit);
  for (auto& part : parts) {
    auto points = to_points(part.text());
    std::reverse(points.begin(), points.end());
    part = Value(points);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

template <bool right>
Value split(Runtime& runtime, const Value& self, Arguments arguments) {
  const BoundArguments bound("split", std::move(arguments), {"sep", "maxsplit"});
  const auto limit = bound.integer(1, -1);
  runtime.spend(static_cast<std::int64_t>(self.text().size()));
  if (bound[0].is_none())
    return make_list(right ? split_right_space(points_of(self), limit) : split_space(points_of(self), limit));
  const std::string separator = required_text(bound[0], "sep");
  if (separator.empty()) value_error("empty separator");
  std::string_view rest = self.text();
  std::vector<Value> parts;
  while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
    const auto at = right ? rest.rfind(separator) : rest.find(separator);
    if (at == std::string_view::npos) break;
    if (right) {
      parts.emplace_back(rest.substr(at + separator.size()));
      rest = rest.substr(0, at);
    } else {
      parts.emplace_back(rest.substr(0, at));
      rest = rest.substr(at + separator.size());
    }
  }
  parts.emplace_back(rest);
  if (right) std::reverse(parts.begin(), parts.end());
  return make_list(std::move(parts));
}

Value splitlines(Runtime& runtime, const Value& self, Arguments arguments) {
  const BoundArguments bound("splitlines", std::move(arguments), {"keepends"});
  runtime.spend(static_cast<std::int64_t>(self.text().size()));
  std::vector<Value> out;
  for (const auto& line : split_lines(self.text(), bound.truth(0, false))) out.emplace_back(line);
  return make_list(std::move(out));
}

template <bool right>
Value partition(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("partition", std::move(arguments), {"sep"}, 1);
  const std::string separator = required_text(bound[0], "sep");
  if (separator.empty()) value_error("empty separator");
  const std::string& text = self.text();
  const auto at = right ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos) return right ? make_tuple({"", "", self}) : make_tuple({self, "", ""});
  return make_tuple({text.substr(0, at), separator, text.substr(at + separator.size())});
}

Value join(Runtime& runtime, const Value& self, Arguments arguments) {
  const BoundArguments bound("join", std::move(arguments), {"iterable"}, 1);
  if (!is_iterable(bound[0])) type_error("can only join an iterable");
  std::string out;
  std::int64_t i = 0;
  for (const auto& item : iterate(bound[0])) {
    if (!item.is_text())
      type_error(fmt::format("sequence item {}: expected str instance, {} found", i, type_name(item)));
    if (i++ > 0) out += self.text();
    out += item.text();
    runtime.spend(static_cast<std::int64_t>(self.text().size() + item.text().size()));
  }
  return out;
}

Value replace(Runtime& runtime, const Value& self, Arguments arguments) {
  const BoundArguments bound("replace", std::move(arguments), {"old", "new", "count"}, 2);
  const std::string from = required_text(bound[0], "replace() argument 1"),
                    to = required_text(bound[1], "replace() argument 2");
  runtime.spend(
      static_cast<std::int64_t>((self.text().size() + 1) / std::max<std::size_t>(from.size(), 1) * to.size()));
  return replace_text(self.text(), from, to, bound.integer(2, -1));
}

template <bool prefix>
Value remove_affix(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("removeprefix", std::move(arguments), {"affix"}, 1);
  const std::string affix = required_text(bound[0], "the prefix or suffix");
  const std::string& text = self.text();
  if (prefix) return text.starts_with(affix) ? text.substr(affix.size()) : text;
  return text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text;
}

enum class Align { kLeft, kRight, kCenter };
template <Align align>
Value pad(Runtime& runtime, const Value& self, Arguments arguments) {
  const BoundArguments bound("pad", std::move(arguments), {"width", "fillchar"}, 1);
  const auto fill = to_points(bound.text(1, " "));
  if (fill.size() != 1) type_error("The fill character must be exactly one character long");
  const auto width = bound.integer(0, 0), margin = width - length(self);
  if (margin <= 0) return self;
  runtime.spend(width);
  if (align == Align::kCenter) return center_text(self.text(), width, fill[0]);
  const std::string blanks = to_utf8(Points(static_cast<std::size_t>(margin), fill[0]));
  return align == Align::kLeft ? self.text() + blanks : blanks + self.text();
}

Value zfill(Runtime& runtime, const Value& self, Arguments arguments) {
  const BoundArguments bound("zfill", std::move(arguments), {"width"}, 1);
  const auto margin = bound.integer(0, 0) - length(self);
  if (margin <= 0) return self;
  runtime.spend(margin);
  const std::string& text = self.text();
  const std::size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return text.substr(0, sign) + std::string(static_cast<std::size_t>(margin), '0') + text.substr(sign);
}

Value expandtabs(Runtime& runtime, const Value& self, Arguments arguments) {
  const BoundArguments bound("expandtabs", std::move(arguments), {"tabsize"});
  const auto size = bound.integer(0, 8);
  Points out;
  std::int64_t column = 0;
  for (char32_t c : points_of(self)) {
    if (c == '\t') {
      const auto blanks = size > 0 ? size - column % size : 0;
      runtime.spend(blanks);
      out.append(static_cast<std::size_t>(blanks), U' ');
      column += blanks;
    } else {
      out += c;
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return out;
}

/// By code point: a text, another code point, or none for nothing.
Value translate(Runtime& runtime, const Value& self, Arguments arguments) {
  const BoundArguments bound("translate", std::move(arguments), {"table"}, 1);
  const auto* table = bound[0].get<DictPtr>();
  if (!table) type_error(fmt::format("'{}' object is not subscriptable", type_name(bound[0])));
  Points out;
  for (const char32_t c : points_of(self)) {
    const Value* now = (*table)->find(Value(static_cast<std::int64_t>(c)));
    if (!now) {
      out += c;
    } else if (now->is_text()) {
      runtime.spend(length(*now));
      out += points_of(*now);
    } else if (!now->is_none()) {
      const auto point = as_index(*now);
      if (point < 0 || point > 0x10FFFF) value_error("character mapping must be in range(0x110000)");
      out += static_cast<char32_t>(point);
    }
  }
  return out;
}

Value format(Runtime& runtime, const Value& self, Arguments arguments) {
  return format_braces(runtime, self, arguments);
}

struct Entry {
  std::string_view name;
  Method method;
};
constexpr std::array kMethods{
    Entry{"capitalize", changed<capitalize>},
    Entry{"casefold", changed<casefold>},
    Entry{"center", pad<Align::kCenter>},
    Entry{"count", count},
    Entry{"endswith", starts_or_ends<false>},
    Entry{"expandtabs", expandtabs},
    Entry{"find", find<false, false>},
    Entry{"format", format},
    Entry{"index", find<false, true>},
    Entry{"isalnum", all_are<is_alnum>},
    Entry{"isalpha", all_are<is_alpha>},
    Entry{"isascii", is_ascii_text},
    Entry{"isdecimal", all_are<is_decimal>},
    Entry{"isdigit", all_are<is_digit>},
    Entry{"isidentifier", is_identifier},
    Entry{"islower", is_lower_text},
    Entry{"isnumeric", all_are<is_numeric>},
    Entry{"isprintable", is_printable_text},
    Entry{"isspace", all_are<is_space>},
    Entry{"istitle", is_title_text},
    Entry{"isupper", is_upper_text},
    Entry{"join", join},
    Entry{"ljust", pad<Align::kLeft>},
    Entry{"lower", changed<lower>},
    Entry{"lstrip", strip<true, false>},
    Entry{"partition", partition<false>},
    Entry{"removeprefix", remove_affix<true>},
    Entry{"removesuffix", remove_affix<false>},
    Entry{"replace", replace},
    Entry{"rfind", find<true, false>},
    Entry{"rindex", find<true, true>},
    Entry{"rjust", pad<Align::kRight>},
    Entry{"rpartition", partition<true>},
    Entry{"rsplit", split<true>},
    Entry{"rstrip", strip<false, true>},
    Entry{"split", split<false>},
    Entry{"splitlines", splitlines},
    Entry{"startswith", starts_or_ends<true>},
    Entry{"strip", strip<true, true>},
    Entry{"swapcase", changed<swapcase>},
    Entry{"title", changed<title>},
    Entry{"translate", translate},
    Entry{"upper", changed<upper>},
    Entry{"zfill", zfill},
};

}  // namespace

Method find_text_method(std::string_view name) {
  const auto it =
      std::find_if(kMethods.begin(), kMethods.end(), [&](const Entry& entry) { return entry.name == name; });
  return it == kMethods.end() ? nullptr : it->method;
}

}  // namespace tessera::chat
