#include "config/document.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json_text.h"
#include "base/plain_reason.h"
#include "base/utf8.h"
#include "config/yaml_writer.h"
#include "tessera/base/error.h"

namespace tessera::config {
namespace {

constexpr std::int64_t kMaxBytes = 4 << 20;
constexpr int kMaxDepth = 32;
constexpr int kMaxNodes = 100'000;  // aliases can make a small file stand for an endless tree

/// Builds the tree from either library, with one set of limits.
class Builder {
 public:
  explicit Builder(const std::string& name) : name_(name) {}

  Node build(const YAML::Node& in, int depth = 0) {
    Node out;
    out.line = in.Mark().is_null() ? 0 : in.Mark().line + 1;
    check_limits(depth, out.line);
    if (in.IsScalar()) {
      out.kind = Node::Kind::kScalar;
      out.text = in.Scalar();
      out.is_quoted = in.Tag() == "!";
    } else if (in.IsSequence()) {
      out.kind = Node::Kind::kList;
      for (const auto& item : in) out.items.push_back(build(item, depth + 1));
    } else if (in.IsMap()) {
      out.kind = Node::Kind::kMap;
      for (const auto& entry : in) {
        const int line = entry.first.Mark().line + 1;
        if (!entry.first.IsScalar()) fail(line, "a key must be a plain name");
        if (entry.first.Scalar() == "<<") fail(line, "merging mappings with '<<' is not supported; write the keys out");
        add_entry(out, entry.first.Scalar(), line, build(entry.second, depth + 1));
      }
    }
    return out;
  }

  Node build(const nlohmann::ordered_json& in, int depth = 0) {
    Node out;
    check_limits(depth, 0);
    if (in.is_array()) {
      out.kind = Node::Kind::kList;
      for (const auto& item : in) out.items.push_back(build(item, depth + 1));
    } else if (in.is_object()) {
      out.kind = Node::Kind::kMap;
      for (const auto& [key, value] : in.items()) add_entry(out, key, 0, build(value, depth + 1));
    } else if (!in.is_null()) {
      out.kind = Node::Kind::kScalar;
      out.text = in.is_string() ? in.get<std::string>() : json_text(in);
      out.is_quoted = in.is_string();
    }
    return out;
  }

  [[noreturn]] void fail(int line, const std::string& message) const {
    throw ConfigError(at_line(name_, line) + message);
  }

 private:
  void check_limits(int depth, int line) {
    if (depth > kMaxDepth) fail(line, fmt::format("nested deeper than {} levels", kMaxDepth));
    if (++nodes_ > kMaxNodes) fail(line, fmt::format("more than {} values", kMaxNodes));
  }

  void add_entry(Node& map, const std::string& key, int line, Node value) const {
    for (const Node::Entry& other : map.entries) {
      if (other.key != key) continue;
      fail(line, fmt::format("the key '{}' is given twice (first in line {}); keep one of them", key, other.line));
    }
    map.entries.push_back({key, line, std::move(value)});
  }

  const std::string& name_;
  int nodes_ = 0;
};

/// The line at which a second document begins; 0: there is one at most. Lines '---' and '...' end a document wherever
/// they stand, within a text, too. (YAML::LoadAll does not come to the end of every text.)
int second_document(std::string_view text) {
  bool has_begun = false, has_ended = false;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a byte order mark
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const auto first = line.find_first_not_of(" \t\r");
    const bool is_marker = line.size() < 4 || line[3] == ' ' || line[3] == '\t' || line[3] == '\r';
    if (line.starts_with("---") && is_marker) {
      if (has_begun) return number;
      has_begun = true;
    } else if (line.starts_with("...") && is_marker) {
      has_ended = has_begun;
    } else if (first != std::string_view::npos && line[first] != '#' && !(line[0] == '%' && !has_begun)) {
      if (has_ended) return number;
      has_begun = true;
    }
  }
  return 0;
}

Node require_map(Node node, const std::string& name) {
  if (node.kind == Node::Kind::kNull) node.kind = Node::Kind::kMap;  // an empty file sets nothing
  if (node.kind != Node::Kind::kMap)
    throw ConfigError(at_line(name, node.line) + "expected lines of the form 'key: value'");
  return node;
}

}  // namespace

std::string number_text(const Node& scalar) {
  std::string digits = scalar.text;
  if (scalar.is_quoted) return digits;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  if (digits.empty() || digits[0] < '0' || digits[0] > '9') return scalar.text;
  std::erase(digits, '_');
  int base = 10;
  if (digits.starts_with("0x") || digits.starts_with("0b")) {
    base = digits[1] == 'x' ? 16 : 2;
    digits.erase(0, 2);
  } else if (digits.size() > 1 && digits[0] == '0') {
    base = 8;
  }
  std::int64_t value = 0;
  const auto* end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, value, base);
  if (error != std::errc() || at != end) return scalar.text;
  return std::to_string(negative ? -value : value);
}

std::string json_of(const Node& node) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array(), map = nlohmann::ordered_json::object();
  const auto parsed = [](const std::string& text) {
    const auto value = nlohmann::ordered_json::parse(text, nullptr, false);
    return value.is_discarded() ? nlohmann::ordered_json(text) : value;
  };
  switch (node.kind) {
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kScalar: {
      if (node.is_quoted) return json_text(nlohmann::ordered_json(node.text));
      const nlohmann::json value = typed_scalar(node.text);
      return json_text(value.is_string() ? parsed(node.text) : nlohmann::ordered_json(value));
    }
    case Node::Kind::kList:
      for (const Node& item : node.items) list.push_back(parsed(json_of(item)));
      return json_text(list);
    case Node::Kind::kMap:
      for (const auto& entry : node.entries) map[entry.key] = parsed(json_of(entry.value));
      return json_text(map);
  }
  return {};
}

std::string at_line(const std::string& name, int line) {
  return line > 0 ? fmt::format("{}:{}: ", name, line) : name + ": ";
}

Node parse_yaml(std::string_view text, const std::string& name) {
  Builder builder(name);
  if (const auto bad = find_malformed_utf8(text)) {
    const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(*bad), '\n') + 1;
    builder.fail(static_cast<int>(line), "expected UTF-8, found a byte that is none; save the file as UTF-8");
  }
  try {
    if (const int line = second_document(text); line > 0)
      builder.fail(line, "expected one document, found the beginning of another");
    return require_map(builder.build(YAML::Load(std::string(text))), name);
  } catch (const YAML::Exception& e) {
    builder.fail(e.mark.is_null() ? 0 : e.mark.line + 1, "not valid YAML: " + plain_reason(e.msg));
  }
}

Node parse_json(std::string_view text, const std::string& name) {
  Builder builder(name);
  try {
    return require_map(builder.build(nlohmann::ordered_json::parse(text)), name);
  } catch (const nlohmann::json::exception& e) {
    builder.fail(0, plain_reason(e));
  }
}

Node read_document(const std::string& path) {
  std::string text;
  try {
    text = read_file(path, kMaxBytes);
  } catch (const DataError& e) {
    throw ConfigError(e.what());
  }
  return path.ends_with(".json") ? parse_json(text, path) : parse_yaml(text, path);
}

}  // namespace tessera::config
