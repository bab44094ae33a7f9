#include <fmt/format.h>

#include <algorithm>

#include "chat/bound_arguments.h"
#include "chat/escape.h"
#include "chat/filters.h"
#include "chat/json.h"
#include "chat/methods.h"
#include "chat/repr.h"
#include "chat/string_format.h"
#include "chat/template_error.h"
#include "chat/text_wrap.h"
#include "chat/unicode.h"

namespace tessera::chat {
namespace {

// What a filter that works on text makes of any value.
std::string soft_text(Runtime& runtime, const Value& value) {
  std::string text = to_text(value);
  runtime.spend(static_cast<std::int64_t>(text.size()));
  return text;
}

template <std::u32string (*change)(std::u32string_view)>
Value changed(Runtime& runtime, const Value& input, Arguments arguments) {
  const BoundArguments none("filter", std::move(arguments), {});
  return change(to_points(soft_text(runtime, input)));
}

// Words begin behind blanks, dashes and opening brackets, unlike str.title.
std::u32string filter_title(std::u32string_view text) {
  static constexpr std::u32string_view kBreaks = U"-({[<";
  const auto breaks = [](char32_t c) { return is_space(c) || kBreaks.find(c) != std::u32string_view::npos; };
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

Value trim(Runtime& runtime, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_trim", std::move(arguments), {"chars"});
  return strip_text(soft_text(runtime, input), bound[0], true, true);
}

Value replace(Runtime& runtime, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_replace", std::move(arguments), {"old", "new", "count"}, 2);
  const std::string text = soft_text(runtime, input), from = bound.text(0, ""), to = bound.text(1, "");
  runtime.spend(static_cast<std::int64_t>((text.size() + 1) / std::max<std::size_t>(from.size(), 1) * to.size()));
  return replace_text(text, from, to, bound.has(2) && !bound[2].is_none() ? bound.integer(2, -1) : -1);
}

Value string(Runtime& runtime, const Value& input, Arguments) {
  return input.is_text() ? input : Value(soft_text(runtime, input));
}

Value escape(Runtime& runtime, const Value& input, Arguments) {
  if (input.is_text() && (*input.get<TextPtr>())->safe) return input;
  return make_safe(escape_html(soft_text(runtime, input)));
}

Value force_escape(Runtime& runtime, const Value& input, Arguments) {
  return make_safe(escape_html(soft_text(runtime, input)));
}

Value safe(Runtime& runtime, const Value& input, Arguments) {
  return make_safe(soft_text(runtime, input));
}

Value striptags(Runtime& runtime, const Value& input, Arguments) {
  return strip_tags(soft_text(runtime, input));
}

Value center(Runtime& runtime, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_center", std::move(arguments), {"width"});
  const auto width = bound.integer(0, 80);
  runtime.spend(width);
  return center_text(soft_text(runtime, input), width);
}

Value indent(Runtime& runtime, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_indent", std::move(arguments), {"width", "first", "blank"});
  require_defined(input);
  if (!input.is_text()) type_error(fmt::format("unsupported operand type(s) for +=: '{}' and 'str'", type_name(input)));
  const std::string by =
      bound.has(0) && bound[0].is_text()
          ? bound[0].text()
          : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(bound.integer(0, 4), 0, 1 << 20)), ' ');
  const auto lines = split_lines(input.text() + "\n");
  runtime.spend(static_cast<std::int64_t>(input.text().size() + lines.size() * by.size()));
  std::string out = bound.truth(1, false) ? by : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (bound.truth(2, false) || !lines[i].empty())) out += by;
    out += lines[i];
  }
  return out;
}

Value truncate(Runtime& runtime, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_truncate", std::move(arguments), {"length", "killwords", "end", "leeway"});
  const auto size = bound.integer(0, 255);
  const auto end = to_points(bound.text(2, "..."));
  const auto leeway = bound.has(3) && !bound[3].is_none() ? bound.integer(3, 5) : 5;
  const auto end_size = static_cast<std::int64_t>(end.size());
  if (size < end_size) value_error(fmt::format("expected length >= {}, got {}", end_size, size));
  if (leeway < 0) value_error(fmt::format("expected leeway >= 0, got {}", leeway));
  if (length(input) <= size + leeway) return input;
  if (!input.is_text()) type_error(fmt::format("'{}' object cannot be truncated", type_name(input)));
  const auto points = to_points(soft_text(runtime, input));
  std::u32string cut = points.substr(0, static_cast<std::size_t>(size - end_size));
  if (!bound.truth(1, false)) cut = cut.substr(0, cut.rfind(U' '));
  return cut + end;
}

Value wordwrap(Runtime& runtime, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_wordwrap", std::move(arguments),
                             {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  WrapOptions options;
  options.width = bound.integer(0, 79);
  options.break_long_words = bound.truth(1, true);
  options.break_on_hyphens = bound.truth(3, true);
  require_defined(input);
  if (!input.is_text()) type_error(fmt::format("'{}' object has no attribute 'splitlines'", type_name(input)));
  if (options.width <= 0) value_error(fmt::format("invalid width {} (must be > 0)", options.width));
  const std::string separator = bound.has(2) && !bound[2].is_none() ? bound.text(2, "\n") : "\n";
  std::string out;
  bool first = true;
  for (const auto& paragraph : split_lines(soft_text(runtime, input))) {
    const auto lines = wrap(to_points(paragraph), options);
    std::string joined;
    for (std::size_t i = 0; i < lines.size(); ++i) joined += (i > 0 ? separator : "") + to_utf8(lines[i]);
    out += (first ? "" : separator) + joined;
    first = false;
  }
  runtime.spend(static_cast<std::int64_t>(out.size()));
  return out;
}

Value wordcount(Runtime& runtime, const Value& input, Arguments) {
  std::int64_t words = 0;
  bool inside = false;
  for (char32_t c : to_points(soft_text(runtime, input))) {
    const bool word = is_identifier_part(c) || is_numeric(c);
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return words;
}

Value format(Runtime& runtime, const Value& input, Arguments arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty())
    value_error("can't handle positional and keyword arguments at the same time");
  if (arguments.named.empty())
    return format_percent(runtime, soft_text(runtime, input), make_tuple(std::move(arguments.positional)));
  Dict named;
  for (auto& [name, value] : arguments.named) named.set(name, std::move(value));
  return format_percent(runtime, soft_text(runtime, input), make_dict(std::move(named)));
}

std::string quote_url(std::string_view text, bool query) {
  std::string out;
  for (unsigned char c : text) {
    const bool plain = std::isalnum(c) || std::string_view("_.-~").find(static_cast<char>(c)) != std::string_view::npos;
    if (plain || (c == '/' && !query))
      out += static_cast<char>(c);
    else if (c == ' ' && query)
      out += '+';
    else
      out += fmt::format("%{:02X}", c);
  }
  return out;
}

Value urlencode(Runtime& runtime, const Value& input, Arguments) {
  if (input.is_text() || !is_iterable(input)) return quote_url(soft_text(runtime, input), false);
  const auto* dict = input.get<DictPtr>();
  std::string out;
  for (const auto& pair : iterate(dict ? Value(View{View::kItems, *dict}) : input)) {
    const auto items = iterate(pair);
    if (items.size() != 2) value_error("not enough values to unpack (expected 2)");
    out += (out.empty() ? "" : "&") + quote_url(soft_text(runtime, items[0]), true) + "=" +
           quote_url(soft_text(runtime, items[1]), true);
  }
  return out;
}

Value xmlattr(Runtime& runtime, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_xmlattr", std::move(arguments), {"autospace"});
  require_defined(input);
  const auto* dict = input.get<DictPtr>();
  if (dict == nullptr) type_error(fmt::format("'{}' object has no attribute 'items'", type_name(input)));
  std::string out;
  for (const auto& [key, value] : (*dict)->items()) {
    if (value.is_none() || value.is_undefined()) continue;
    const std::string name = soft_text(runtime, key);
    if (name.find_first_of(" \t\n\r\f\v/>=") != std::string::npos)
      value_error(fmt::format("Invalid character in attribute name: {}", repr_text(name)));
    out +=
        fmt::format("{}{}=\"{}\"", out.empty() ? "" : " ", escape_html(name), escape_html(soft_text(runtime, value)));
  }
  return !out.empty() && bound.truth(0, true) ? " " + out : out;
}

Value tojson(Runtime& runtime, const Value& input, Arguments arguments) {
  const BoundArguments bound("tojson", std::move(arguments), {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.truth(0, false);
  style.sort_keys = bound.truth(3, false);
  if (bound.has(1) && !bound[1].is_none()) {
    style.indent =
        bound[1].is_text()
            ? bound[1].text()
            : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(as_index(bound[1]), 0, 1024)), ' ');
    style.item_separator = ",";
  }
  if (bound.has(2) && !bound[2].is_none()) {
    const auto separators = iterate(bound[2]);
    if (separators.size() != 2) value_error("separators must be a pair");
    style.item_separator = to_text(separators[0]);
    style.key_separator = to_text(separators[1]);
  }
  std::string out = dump_json(input, style);
  runtime.spend(static_cast<std::int64_t>(out.size()));
  return out;
}

Value pprint(Runtime& runtime, const Value& input, Arguments) {
  std::string out = pretty(input);
  runtime.spend(static_cast<std::int64_t>(out.size()));
  return out;
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
      {"title", changed<filter_title>},
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
