#include "config/document.h"

#include <fmt/format.h>
#include <yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <new>
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

/// What both forms have in common: limits, and keys that are unique.
class Builder {
 public:
  explicit Builder(const std::string& name) : name_(name) {}

  [[noreturn]] void fail(int line, const std::string& message) const {
    throw ConfigError(at_line(name_, line) + message);
  }

 protected:
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

 private:
  const std::string& name_;
  int nodes_ = 0;
};

class JsonBuilder : public Builder {
 public:
  using Builder::Builder;

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
};

/// From libyaml's events: with PyYAML's rules, but that some tabs are taken which PyYAML refuses.
class YamlBuilder : public Builder {
 public:
  YamlBuilder(std::string_view text, const std::string& name) : Builder(name), text_(text) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  ~YamlBuilder() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  YamlBuilder(const YamlBuilder&) = delete;
  YamlBuilder& operator=(const YamlBuilder&) = delete;

  /// The one document; null where there is none.
  Node build() {
    Node out;
    next();  // the beginning of the text
    next();
    if (event_.type == YAML_STREAM_END_EVENT) return out;
    next();  // of the document
    out = value(0);
    next();  // its end
    next();
    if (event_.type != YAML_STREAM_END_EVENT) fail_at_another(line());
    return out;
  }

 private:
  using Text = const unsigned char*;
  static std::string text_of(Text text) { return text == nullptr ? "" : reinterpret_cast<const char*>(text); }

  int line() const { return static_cast<int>(event_.start_mark.line) + 1; }

  void next() {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) != 0) return;
    if (parser_.error == YAML_MEMORY_ERROR) throw std::bad_alloc();
    const std::string_view problem = parser_.problem;
    auto line = static_cast<std::ptrdiff_t>(parser_.problem_mark.line);
    if (problem == "did not find expected <document start>") fail_at_another(static_cast<int>(line) + 1);
    if (parser_.error == YAML_SCANNER_ERROR) line = static_cast<std::ptrdiff_t>(parser_.context_mark.line);
    if (parser_.error == YAML_READER_ERROR)  // which knows the byte alone
      line =
          std::count(text_.begin(),
                     text_.begin() + static_cast<std::ptrdiff_t>(std::min(parser_.problem_offset, text_.size())), '\n');
    fail(static_cast<int>(line) + 1, fmt::format("not valid YAML: {}{}{}", parser_.context ? parser_.context : "",
                                                 parser_.context ? ": " : "", problem));
  }

  [[noreturn]] void fail_at_another(int line) const {
    fail(line, "expected one document, found the beginning of another");
  }

  // At the event that a value begins with; goes to its last one.
  Node value(int depth) {
    Node out;
    out.line = line();
    check_limits(depth, out.line);
    std::string anchor;
    if (event_.type == YAML_ALIAS_EVENT) return repeated(text_of(event_.data.alias.anchor), depth);
    if (event_.type == YAML_SCALAR_EVENT) {
      anchor = text_of(event_.data.scalar.anchor);
      read_scalar(out);
    } else if (event_.type == YAML_SEQUENCE_START_EVENT) {
      anchor = text_of(event_.data.sequence_start.anchor);
      require_tag(text_of(event_.data.sequence_start.tag), "seq");
      out.kind = Node::Kind::kList;
      for (next(); event_.type != YAML_SEQUENCE_END_EVENT; next()) out.items.push_back(value(depth + 1));
    } else {
      anchor = text_of(event_.data.mapping_start.anchor);
      require_tag(text_of(event_.data.mapping_start.tag), "map");
      out.kind = Node::Kind::kMap;
      for (next(); event_.type != YAML_MAPPING_END_EVENT; next()) {
        const Node key = value(depth + 1);
        if (key.kind != Node::Kind::kScalar) fail(key.line, "a key must be a plain name");
        if (key.text == "<<" && !key.is_quoted)
          fail(key.line, "merging mappings with '<<' is not supported; write the keys out");
        next();
        add_entry(out, key.text, key.line, value(depth + 1));
      }
    }
    if (!anchor.empty()) anchors_[anchor] = out;
    return out;
  }

  void read_scalar(Node& out) {
    const auto& scalar = event_.data.scalar;
    const std::string tag = text_of(scalar.tag);
    out.text = std::string(reinterpret_cast<const char*>(scalar.value), scalar.length);
    out.is_quoted = scalar.style != YAML_PLAIN_SCALAR_STYLE;
    if (tag == "tag:yaml.org,2002:str")
      out.is_quoted = true;
    else if (tag == "tag:yaml.org,2002:int" || tag == "tag:yaml.org,2002:float" || tag == "tag:yaml.org,2002:bool" ||
             tag == "tag:yaml.org,2002:null")
      out.is_quoted = false;
    else
      require_tag(tag, "str");
    constexpr std::array<std::string_view, 5> kNulls{"", "~", "null", "Null", "NULL"};
    const bool is_null = !out.is_quoted && std::find(kNulls.begin(), kNulls.end(), out.text) != kNulls.end();
    out.kind = is_null ? Node::Kind::kNull : Node::Kind::kScalar;
  }

  void require_tag(const std::string& tag, std::string_view kind) const {
    if (!tag.empty() && tag != "!" && tag != fmt::format("tag:yaml.org,2002:{}", kind))
      fail(line(), fmt::format("the tag '{}' has no meaning here; leave it out", tag));
  }

  Node repeated(const std::string& anchor, int depth) {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end())
      fail(line(), fmt::format("'*{0}' repeats what '&{0}' marks, which is not there", anchor));
    count(found->second, depth);
    return found->second;
  }

  // A repetition counts as if it were written out.
  void count(const Node& node, int depth) {
    check_limits(depth, line());
    for (const auto& item : node.items) count(item, depth + 1);
    for (const auto& entry : node.entries) count(entry.value, depth + 1);
  }

  std::string_view text_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
  std::map<std::string, Node> anchors_;
};

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
  YamlBuilder builder(text, name);
  if (const auto bad = find_malformed_utf8(text)) {
    const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(*bad), '\n') + 1;
    builder.fail(static_cast<int>(line), "expected UTF-8, found a byte that is none; save the file as UTF-8");
  }
  return require_map(builder.build(), name);
}

Node parse_json(std::string_view text, const std::string& name) {
  JsonBuilder builder(name);
  if (const auto zero = text.find('\0'); zero != text.npos)  // the library takes it for the end
    builder.fail(0, fmt::format("not valid JSON: a zero byte, at byte {}", zero + 1));
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
