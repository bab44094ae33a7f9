#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/escape.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/json.h"
#include "chat/jinja/methods.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/string_format.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"
#include "chat/jinja/text_wrap.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

// What a filter that works on text makes of any value.
std::string soft_text(const Value& value) {
  spend(value.is_text() ? static_cast<std::int64_t>(value.text().size()) : 0);
  return to_text(value);
}

template <std::u32string (*change)(std::u32string_view)>
Value changed(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  return made_of(input, to_utf8(change(to_points(soft_text(input)))));
}

// Words begin behind blanks, dashes and opening brackets, unlike str.title.
std::u32string filter_title(std::u32string_view text) {
  static constexpr std::u32string_view kBreaks = U"-({[<";
  const auto breaks = [](char32_t c) { return is_space(c) || kBreaks.find(c) != std::u32string_view::npos; };
  spend(kPropertyWork * static_cast<std::int64_t>(text.size()));
  std::u32string out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at + 1;
    while (end < text.size() && breaks(text[end]) == breaks(text[at])) ++end;
    out += upper(text.substr(at, 1));
    out += lower(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return out;
}

Value title(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  return filter_title(to_points(soft_text(input)));
}

Value trim(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_trim", std::move(arguments), {"chars"});
  return made_of(input, strip_text(soft_text(input), bound[0], true, true));
}

Value replace(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_replace", std::move(arguments), {"old", "new", "count"}, 2);
  return replace_text(soft_text(input), bound.text(0, ""), bound.text(1, ""),
                      bound[2].is_none() ? -1 : bound.integer(2, -1));
}

Value string(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  return input.is_text() ? input : Value(soft_text(input));
}

Value escape(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  if (is_safe(input)) return input;
  return make_safe(escape_html(soft_text(input)));
}

Value force_escape(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  return make_safe(escape_html(soft_text(input)));
}

Value safe(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  return make_safe(soft_text(input));
}

Value striptags(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  return strip_tags(soft_text(input));
}

Value center(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_center", std::move(arguments), {"width"});
  return made_of(input, center_text(soft_text(input), bound.integer(0, 80)));
}

Value indent(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_indent", std::move(arguments), {"width", "first", "blank"});
  require_defined(input);
  if (!input.is_text()) type_error(fmt::format("unsupported operand type(s) for +=: '{}' and 'str'", type_name(input)));
  TextBuilder blanks;
  if (!bound[0].is_text()) blanks.repeat(" ", bound.integer(0, 4));
  const std::string by = bound[0].is_text() ? bound[0].text() : blanks.take();
  const bool blank = bound.truth(2, false);
  TextBuilder out, text;
  (text += input.text()) += '\n';
  if (bound.truth(1, false)) out += by;
  bool first = true;
  std::string_view rest = text.text(), line, whole;
  while (take_line(rest, line, whole)) {
    if (!std::exchange(first, false)) {
      out += '\n';
      if (blank || !line.empty()) out += by;
    }
    out += line;
  }
  return made_of(input, out.take());
}

Value truncate(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_truncate", std::move(arguments), {"length", "killwords", "end", "leeway"});
  const auto size = bound.integer(0, 255);
  const std::string end = bound.has(2) ? required_text(bound[2], "truncate") : "...";
  const auto leeway = bound[3].is_none() ? 5 : bound.integer(3, 5);
  const auto end_size = count_points(end);
  if (size < end_size) value_error(fmt::format("expected length >= {}, got {}", end_size, size));
  if (leeway < 0) value_error(fmt::format("expected leeway >= 0, got {}", leeway));
  if (length(input) - size <= leeway) return input;
  if (!input.is_text()) type_error(fmt::format("'{}' object cannot be truncated", type_name(input)));
  const auto points = to_points(soft_text(input));
  std::u32string_view cut = std::u32string_view(points).substr(0, static_cast<std::size_t>(size - end_size));
  if (!bound.truth(1, false)) cut = cut.substr(0, cut.rfind(U' '));
  TextBuilder out;
  (out += to_utf8(cut)) += is_safe(input) && !is_safe(bound[2]) ? escape_html(end) : end;
  return made_of(input, out.take());
}

Value wordwrap(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_wordwrap", std::move(arguments),
                             {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  WrapOptions options;
  options.width = bound.integer(0, 79);
  options.break_long_words = bound.truth(1, true);
  options.break_on_hyphens = bound.truth(3, true);
  options.separator = bound[2].is_none() ? "\n" : required_text(bound[2], "wordwrap");
  require_defined(input);
  if (!input.is_text()) type_error(fmt::format("'{}' object has no attribute 'splitlines'", type_name(input)));
  TextBuilder out;
  bool first = true;
  std::string_view rest = input.text(), line, whole;
  while (take_line(rest, line, whole)) {
    if (options.width <= 0) value_error(fmt::format("invalid width {} (must be > 0)", options.width));
    if (!std::exchange(first, false)) out += options.separator;
    wrap(to_points(line), options, out);
  }
  return out.take();
}

Value wordcount(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  const auto points = to_points(soft_text(input));
  spend(kPropertyWork * static_cast<std::int64_t>(points.size()));
  std::int64_t words = 0;
  bool inside = false;
  for (char32_t c : points) {
    const bool word = c == '_' || is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return words;
}

Value format(Runtime&, const Value& input, Arguments arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty())
    value_error("can't handle positional and keyword arguments at the same time");
  const Value text = input.is_text() ? input : Value(soft_text(input));
  if (arguments.named.empty()) return made_of(text, format_percent(text, make_tuple(std::move(arguments.positional))));
  Dict named;
  for (auto& [name, value] : arguments.named) named.set(name, std::move(value));
  return made_of(text, format_percent(text, make_dict(std::move(named))));
}

void quote_url(std::string_view text, bool query, TextBuilder& out) {
  for (const char byte : text) {
    const auto c = static_cast<unsigned char>(byte);
    const bool plain = std::isalnum(c) || std::string_view("_.-~").find(byte) != std::string_view::npos;
    if (plain || (c == '/' && !query))
      out += byte;
    else if (c == ' ' && query)
      out += '+';
    else
      out += fmt::format("%{:02X}", c);
  }
}

Value urlencode(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  TextBuilder out;
  if (input.is_text() || !is_iterable(input) || input.is_undefined()) {
    quote_url(soft_text(input), false, out);
    return out.take();
  }
  const auto* dict = input.get<DictPtr>();
  for (const auto& pair : iterate(dict ? Value(View{View::kItems, *dict}) : input)) {
    const auto items = iterate(pair);
    if (items.size() != 2) value_error("not enough values to unpack (expected 2)");
    if (!out.empty()) out += '&';
    quote_url(soft_text(items[0]), true, out);
    out += '=';
    quote_url(soft_text(items[1]), true, out);
  }
  return out.take();
}

Value xmlattr(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_xmlattr", std::move(arguments), {"autospace"});
  require_defined(input);
  const auto* dict = input.get<DictPtr>();
  if (dict == nullptr) type_error(fmt::format("'{}' object has no attribute 'items'", type_name(input)));
  TextBuilder out;
  for (const auto& [key, value] : (*dict)->items()) {
    if (value.is_none() || value.is_undefined()) continue;
    const auto& name = required_text(key, "xmlattr");
    if (name.find_first_of(" \t\n\r\f\v/>=") != std::string::npos)
      value_error(fmt::format("Invalid character in attribute name: {}", repr_text(name)));
    if (!out.empty() || bound.truth(0, true)) out += ' ';
    out += escape_html(name);
    out += "=\"";
    out += is_safe(value) ? value.text() : escape_html(soft_text(value));
    out += '"';
  }
  return out.take();
}

Value tojson(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("tojson", std::move(arguments), {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.truth(0, false);
  style.sort_keys = bound.truth(3, false);
  if (!bound[1].is_none()) {
    TextBuilder blanks;
    if (!bound[1].is_text()) blanks.repeat(" ", as_index(bound[1]));
    style.indent = bound[1].is_text() ? bound[1].text() : blanks.take();
    style.item_separator = std::string(1, ',');
  }
  if (!bound[2].is_none()) {
    const auto separators = iterate(bound[2]);
    if (separators.size() != 2) value_error("separators must be a pair");
    style.item_separator = required_text(separators[0], "tojson");
    style.key_separator = required_text(separators[1], "tojson");
  }
  return dump_json(input, style);
}

Value pprint(Runtime&, const Value& input, Arguments arguments) {
  no_filter_arguments(std::move(arguments));
  return pretty(input);
}

}  // namespace

const std::vector<FilterEntry>& text_filters() {
  static const std::vector<FilterEntry> table{
      {"capitalize", changed<capitalize>},
      {"center", center},
      {"e", escape},
      {"escape", escape},
      {"forceescape", force_escape},
      {"format", format},
      {"indent", indent},
      {"lower", changed<lower>},
      {"pprint", pprint},
      {"replace", replace},
      {"safe", safe},
      {"string", string},
      {"striptags", striptags},
      {"title", title},
      {"tojson", tojson},
      {"trim", trim},
      {"truncate", truncate},
      {"upper", changed<upper>},
      {"urlencode", urlencode},
      {"wordcount", wordcount},
      {"wordwrap", wordwrap},
      {"xmlattr", xmlattr},
  };
  return table;
}

}  // namespace tessera::chat
