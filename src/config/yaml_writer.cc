#include "config/yaml_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/json_text.h"
#include "config/option_value.h"

namespace tessera::config {
namespace {

using DocumentJson = nlohmann::json;  // its maps are sorted

bool is_any(const std::string& text, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return detail::equal_ignoring_case(text, word); });
}

bool is_printable_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_digit_or_line(char c) {
  return is_digit(c) || c == '_';
}

/// What YAML 1.1's forms of numbers consist of, taken off the front of a text. By hand: std::regex recurses for each
/// character.
class Scan {
 public:
  explicit Scan(std::string_view text) : rest_(text) {}
  bool one(std::string_view of) {
    const bool is_there = !rest_.empty() && of.find(rest_.front()) != std::string_view::npos;
    if (is_there) rest_.remove_prefix(1);
    return is_there;
  }
  /// How many were taken.
  std::size_t run(bool (*likes)(char), std::size_t at_most = std::string_view::npos) {
    std::size_t count = 0;
    while (count < std::min(at_most, rest_.size()) && likes(rest_[count])) ++count;
    rest_.remove_prefix(count);
    return count;
  }
  bool next(bool (*likes)(char)) const { return !rest_.empty() && likes(rest_.front()); }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

/// [-+]?(0|[1-9][0-9_]*)
bool is_integer(std::string_view text) {
  Scan scan(text);
  scan.one("-+");
  if (scan.one("0")) return scan.at_end();
  return scan.next(is_digit) && scan.run(is_digit_or_line) > 0 && scan.at_end();
}

/// [-+]?([0-9][0-9_]*)?\.[0-9_]*([eE][-+][0-9]+)?, with a digit before the exponent
bool is_real(std::string_view text) {
  Scan scan(text);
  scan.one("-+");
  const bool has_whole = scan.next(is_digit) && scan.run(is_digit_or_line) > 0;
  if (!scan.one(".") || (!has_whole && !scan.next(is_digit))) return false;
  scan.run(is_digit_or_line);
  return scan.at_end() || (scan.one("eE") && scan.one("-+") && scan.run(is_digit) > 0 && scan.at_end());
}

/// [-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?
bool is_sexagesimal(std::string_view text) {
  Scan scan(text);
  scan.one("-+");
  if (!scan.next(is_digit)) return false;
  scan.run(is_digit_or_line);
  int parts = 0;
  for (; scan.one(":"); ++parts) {
    const bool is_low = scan.one("012345");
    if (!scan.one("0123456789") && !is_low) return false;
  }
  if (parts > 0 && scan.one(".")) scan.run(is_digit_or_line);
  return parts > 0 && scan.at_end();
}

/// [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*
bool begins_as_date(std::string_view text) {
  Scan scan(text);
  return scan.run(is_digit, 4) == 4 && scan.one("-") && scan.run(is_digit, 2) > 0 && scan.one("-") &&
         scan.run(is_digit, 1) == 1;
}

/// Nothing for what is no number, or one that its type cannot hold.
std::optional<DocumentJson> number(std::string text) {
  const bool is_whole = is_integer(text);
  if (!is_whole && !is_real(text)) return std::nullopt;
  std::erase(text, '_');
  const char *begin = text.data() + (text.starts_with('+') ? 1 : 0), *end = text.data() + text.size();
  std::int64_t whole = 0;
  double real = 0;
  const auto read = is_whole ? std::from_chars(begin, end, whole) : std::from_chars(begin, end, real);
  if (read.ec != std::errc()) return std::nullopt;
  return is_whole ? DocumentJson(whole) : DocumentJson(real);
}

/// Whether it reads as a text without quotes.
bool stays_plain(const std::string& text) {
  if (text.empty() || !typed_scalar(text).is_string()) return false;
  if (is_sexagesimal(text) || begins_as_date(text) || text == "=") return false;
  const bool begins_special = std::string("!&*|>'\"%@`#,[]{}").find(text[0]) != std::string::npos;
  const bool begins_mark =
      std::string("-?:").find(text[0]) != std::string::npos && (text.size() == 1 || text[1] == ' ');
  const bool has_mark = text.find(": ") != std::string::npos || text.find(" #") != std::string::npos;
  return !begins_special && !begins_mark && !has_mark && text.front() != ' ' && text.back() != ' ' &&
         text.back() != ':';
}

std::string text_scalar(const std::string& text) {
  if (!is_printable_ascii(text)) return json_text(DocumentJson(text), -1, true);  // JSON's escapes are YAML's
  if (stays_plain(text)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

std::string scalar(const DocumentJson& value) {
  return value.is_string() ? text_scalar(value.get<std::string>()) : json_text(value);
}

void append(const DocumentJson& value, const std::string& indent, std::string& out) {
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      if (item.is_null()) continue;
      out += indent + text_scalar(key) + ":";
      if (item.is_structured() && !item.empty()) {
        out += "\n";
        append(item, item.is_array() ? indent : indent + "  ", out);
      } else {
        out += " " + scalar(item) + "\n";
      }
    }
    return;
  }
  for (const auto& item : value) {
    if (!item.is_structured() || item.empty()) {
      out += indent + "- " + scalar(item) + "\n";
      continue;
    }
    std::string inner;
    append(item, indent + "  ", inner);
    out += indent + "- " + inner.substr(indent.size() + 2);
  }
}

}  // namespace

std::string to_yaml_text(const DocumentJson& document) {
  std::string out;
  append(document, "", out);
  return out;
}

DocumentJson typed_scalar(const std::string& text) {
  if (text.empty() || text == "~" || is_any(text, {"null"})) return nullptr;
  if (is_any(text, {"true", "yes", "on"})) return true;
  if (is_any(text, {"false", "no", "off"})) return false;
  return number(text).value_or(text);
}

DocumentJson typed(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return nullptr;
    case Node::Kind::kScalar:
      return node.is_quoted ? DocumentJson(node.text) : typed_scalar(node.text);
    case Node::Kind::kList: {
      DocumentJson list = DocumentJson::array();
      for (const Node& item : node.items) list.push_back(typed(item));
      return list;
    }
    case Node::Kind::kMap: {
      DocumentJson map = DocumentJson::object();
      for (const Node::Entry& entry : node.entries) map[entry.key] = typed(entry.value);
      return map;
    }
  }
  return nullptr;
}

}  // namespace tessera::config
