#include "config/yaml_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <regex>

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

/// Whether it reads as a text without quotes.
bool stays_plain(const std::string& text) {
  static const std::regex sexagesimal("[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\\.[0-9_]*)?");
  static const std::regex date("[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*");
  if (text.empty() || !typed_scalar(text).is_string()) return false;
  if (std::regex_match(text, sexagesimal) || std::regex_match(text, date) || text == "=") return false;
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
  static const std::regex integer("[-+]?(0|[1-9][0-9_]*)");
  static const std::regex real("[-+]?([0-9][0-9_]*)?\\.[0-9_]*([eE][-+][0-9]+)?");
  if (text.empty() || text == "~" || is_any(text, {"null"})) return nullptr;
  if (is_any(text, {"true", "yes", "on"})) return true;
  if (is_any(text, {"false", "no", "off"})) return false;
  std::string digits = text;
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  if (std::regex_match(text, integer) && digits.size() < 19) return std::stoll(digits);
  if (std::regex_match(text, real) && std::any_of(text.begin(), text.end(), ::isdigit)) return std::stod(digits);
  return text;
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
