// str.format: fields in braces, with attributes, items, conversions and format specifications.
#include <fmt/format.h>

#include <cmath>

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/escape.h"
#include "chat/jinja/format_number.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/runtime.h"
#include "chat/jinja/string_format.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

struct Spec {
  char32_t fill = ' ';
  char32_t align = 0;
  char sign = '-';
  bool zero = false, no_negative_zero = false;
  std::int64_t width = 0;
  NumberFormat number;
};

bool is_align(char32_t c) {
  return c == '<' || c == '>' || c == '=' || c == '^';
}

Spec parse_spec(std::string_view text, const Value& value) {
  const auto points = to_points(text);
  Spec spec;
  std::size_t at = 0;
  const auto peek = [&](std::size_t ahead = 0) { return at + ahead < points.size() ? points[at + ahead] : U'\0'; };
  const auto number = [&] {
    std::int64_t out = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at) {
      out = out * 10 + static_cast<std::int64_t>(peek() - '0');
      if (out > kMaxWidth) value_error("Too many decimal digits in format string");
    }
    return out;
  };
  if (is_align(peek(1))) {
    spec.fill = peek();
    spec.align = peek(1);
    at = 2;
  } else if (is_align(peek())) {
    spec.align = points[at++];
  }
  if (peek() == '+' || peek() == '-' || peek() == ' ') spec.sign = static_cast<char>(points[at++]);
  if (peek() == 'z') {
    spec.no_negative_zero = true;
    ++at;
  }
  if (peek() == '#') {
    spec.number.alternate = true;
    ++at;
  }
  if (peek() == '0') {
    spec.zero = true;
    ++at;
  }
  spec.width = number();
  if (peek() == ',' || peek() == '_') spec.number.grouping = static_cast<char>(points[at++]);
  if (peek() == '.') {
    ++at;
    if (peek() < '0' || peek() > '9') value_error("Format specifier missing precision");
    spec.number.precision = static_cast<int>(number());
  }
  if (at < points.size()) spec.number.type = static_cast<char>(points[at++]);
  if (at < points.size())
    value_error(fmt::format("Invalid format specifier '{}' for object of type '{}'", text, type_name(value)));
  if (spec.zero && spec.align == 0) {
    spec.fill = '0';
    spec.align = '=';
  }
  return spec;
}

std::string padded(const Spec& spec, char32_t default_align, const std::string& sign, const std::string& body) {
  const auto margin = spec.width - count_points(sign) - count_points(body);
  const std::string fill = to_utf8(std::u32string(1, spec.fill));
  const char32_t align = spec.align == 0 ? default_align : spec.align;
  const std::int64_t before = align == '^' ? margin / 2 : align == '<' || align == '=' ? 0 : margin;
  TextBuilder out;
  out.repeat(fill, before);
  out += sign;
  if (align == '=') out.repeat(fill, margin);
  out += body;
  if (align == '<' || align == '^') out.repeat(fill, margin - before);
  return out.take();
}

std::string sign_of(const Spec& spec, bool negative) {
  return negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
}

class BraceFormat {
 public:
  BraceFormat(const Arguments& arguments, bool safe) : arguments_(arguments), safe_(safe) {}

  std::string run(std::string_view text, int depth) {
    if (depth > 2) value_error("Max string recursion exceeded");
    TextBuilder out;
    for (std::size_t at = 0; at < text.size();) {
      const char c = text[at];
      const bool doubled = at + 1 < text.size() && text[at + 1] == c;
      if ((c == '{' || c == '}') && doubled) {
        out += c;
        at += 2;
      } else if (c == '}') {
        value_error("Single '}' encountered in format string");
      } else if (c == '{') {
        const std::size_t end = closing(text, at + 1);
        out += field(text.substr(at + 1, end - at - 1), depth);
        at = end + 1;
      } else {
        out += c;
        ++at;
      }
    }
    return out.take();
  }

 private:
  static std::size_t closing(std::string_view text, std::size_t at) {
    for (int open = 1; at < text.size(); ++at) {
      if (text[at] == '{') ++open;
      if (text[at] == '}' && --open == 0) return at;
    }
    value_error("expected '}' before end of string");
  }

  std::string field(std::string_view field, int depth) {
    spend(kFieldWork + static_cast<std::int64_t>(field.size()));
    std::size_t end = 0;
    for (bool inside = false; end < field.size(); ++end) {
      if (field[end] == '[') inside = true;
      if (field[end] == ']') inside = false;
      if (!inside && (field[end] == '!' || field[end] == ':')) break;
    }
    Value value = lookup(field.substr(0, end));
    if (end < field.size() && field[end] == '!') {
      const char conversion = end + 1 < field.size() ? field[end + 1] : '\0';
      if (conversion != 's' && conversion != 'r' && conversion != 'a')
        value_error(fmt::format("Unknown conversion specifier '{}'", conversion));
      value = conversion == 's' ? Value(to_text(value)) : Value(conversion == 'a' ? ascii(value) : repr(value));
      end += 2;
      if (end < field.size() && field[end] != ':') value_error("expected ':' after conversion specifier");
    }
    const std::string spec = end < field.size() ? run(field.substr(end + 1), depth + 1) : "";
    if (!safe_) return format_value(value, spec);
    // Of a safe text: what is filled in is escaped.
    const bool safe = is_safe(value);
    if (safe && !spec.empty()) value_error("Unsupported format specification for Markup.");
    return safe ? value.text() : escape_html(format_value(value, spec));
  }

  static bool is_number(std::string_view text) {
    return !text.empty() && text.size() < 18 && text.find_first_not_of("0123456789") == std::string_view::npos;
  }

  Value first(std::string_view name) {
    if (name.empty() || is_number(name)) {
      if ((name.empty() ? numbered_ : automatic_ > 0))
        value_error("cannot switch between manual field specification and automatic field numbering");
      numbered_ = numbered_ || !name.empty();
      const auto index = name.empty() ? automatic_++ : static_cast<std::size_t>(std::stoll(std::string(name)));
      if (index >= arguments_.positional.size())
        value_error(fmt::format("Replacement index {} out of range for positional args tuple", index));
      return arguments_.positional[index];
    }
    for (const auto& [key, value] : arguments_.named)
      if (key == name) return value;
    value_error(repr_text(name));
  }

  Value lookup(std::string_view path) {
    auto end = std::min(path.find_first_of(".["), path.size());
    Value value = first(path.substr(0, end));
    while (end < path.size()) {
      if (path[end] == '.') {
        const auto next = std::min(path.find_first_of(".[", end + 1), path.size());
        value = get_attribute(value, path.substr(end + 1, next - end - 1));
        end = next;
      } else {
        const auto close = path.find(']', end);
        if (close == std::string_view::npos) value_error("Missing ']' in format string");
        const auto key = path.substr(end + 1, close - end - 1);
        value = get_item(value, is_number(key) ? Value(std::int64_t{std::stoll(std::string(key))}) : Value(key));
        end = close + 1;
        if (end < path.size() && path[end] != '.' && path[end] != '[')
          value_error("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  const Arguments& arguments_;
  std::size_t automatic_ = 0;
  bool safe_, numbered_ = false;
};

}  // namespace

std::string format_value(const Value& value, std::string_view text) {
  if (text.empty()) return to_text(value);
  if (!value.is_text() && !value.number())
    type_error(fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
  Spec spec = parse_spec(text, value);
  if (value.is_text()) {
    if (spec.number.type != '\0' && spec.number.type != 's')
      value_error(fmt::format("Unknown format code '{}' for object of type 'str'", spec.number.type));
    if (spec.no_negative_zero) value_error("Negative zero coercion (z) not allowed in string format specifier");
    if (spec.number.grouping != '\0') value_error(fmt::format("Cannot specify '{}' with 's'.", spec.number.grouping));
    if (spec.align == '=' && !spec.zero) value_error("'=' alignment not allowed in string format specifier");
    if (spec.align == '=') spec.align = '<';
    auto points = to_points(value.text());
    if (spec.number.precision >= 0) points = points.substr(0, static_cast<std::size_t>(spec.number.precision));
    return padded(spec, '<', "", to_utf8(points));
  }
  const auto integer = value.integer();
  const bool as_float = !integer || std::string_view("eEfFgG%").find(spec.number.type) != std::string_view::npos;
  if (integer && spec.number.type == 'c') {
    const auto code = as_index(value);
    if (code < 0 || code > 0x10ffff) value_error("%c arg not in range(0x110000)");
    return padded(spec, '<', "", to_utf8(std::u32string(1, static_cast<char32_t>(code))));
  }
  const auto set_zeros = [&](const std::string& sign) {
    if (spec.fill == '0' && spec.align == '=') spec.number.zeros = spec.width - count_points(sign);
    return sign;
  };
  if (as_float && !(integer && spec.number.type == '\0')) {
    const double number = *value.number();
    std::string sign = set_zeros(sign_of(spec, std::signbit(number)));
    const std::string digits = format_float(number, spec.number);
    if (spec.no_negative_zero && digits.find_first_of("123456789ainf") == std::string::npos)
      sign = sign_of(spec, false);
    return padded(spec, '>', sign, digits);
  }
  if (spec.number.precision >= 0) value_error("Precision not allowed in integer format specifier");
  if (spec.no_negative_zero) value_error("Negative zero coercion (z) not allowed in format specifier with integer");
  const std::string sign = set_zeros(sign_of(spec, integer->is_negative()));
  return padded(spec, '>', sign, format_integer(*integer, spec.number));
}

std::string format_braces(const Value& format, const Arguments& arguments) {
  return BraceFormat(arguments, is_safe(format)).run(format.text(), 1);
}

}  // namespace tessera::chat
