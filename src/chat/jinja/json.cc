#include "chat/jinja/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/plain_reason.h"
#include "chat/jinja/merge_sort.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(std::int64_t value) override { return add(value); }
  bool number_unsigned(std::uint64_t value) override { return add(*Integer::parse(std::to_string(value))); }
  bool number_float(double value, const std::string& text) override {
    // Integers that do not fit 64 bits come here, too.
    if (text.find_first_of(".eE") == std::string::npos) return add(*Integer::parse(text));
    return add(value);
  }
  bool string(std::string& value) override { return add(Value(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool key(std::string& value) override {
    open_.back().key = value;
    return true;
  }
  bool end_object() override {
    Value value = make_dict(std::move(open_.back().dict));
    open_.pop_back();
    return add(std::move(value));
  }
  bool end_array() override {
    Value value = make_list(std::move(open_.back().list));
    open_.pop_back();
    return add(std::move(value));
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    const std::string text = plain_reason(e);  // "not valid JSON at line 1, column 2: reason"
    const auto reason = text.find(": ");
    value_error(
        fmt::format("not JSON at byte {}: {}", position, reason == std::string::npos ? text : text.substr(reason + 2)));
  }
  Value take() { return std::move(root_); }

 private:
  struct Open {
    bool is_object;
    std::string key;
    Dict dict;
    std::vector<Value> list;
  };
  bool open(bool is_object) {
    if (open_.size() >= static_cast<std::size_t>(kMaxNesting))
      fail(ErrorKind::kLimit, fmt::format("JSON nests deeper than {} levels", kMaxNesting));
    open_.push_back({is_object, {}, {}, {}});
    return true;
  }
  bool add(Value value) {
    if (open_.empty())
      root_ = std::move(value);
    else if (open_.back().is_object)
      open_.back().dict.set(open_.back().key, std::move(value));
    else
      open_.back().list.push_back(std::move(value));
    return true;
  }

  std::vector<Open> open_;
  Value root_;
};

class Dumper {
 public:
  explicit Dumper(const JsonStyle& style) : style_(style) {}
  std::string take() { return out_.take(); }

  void write(const Value& value, int depth = 0) {
    spend(kValueWork);
    if (value.is_none()) {
      out_ += "null";
    } else if (const auto* boolean = value.get<bool>()) {
      out_ += *boolean ? "true" : "false";
    } else if (const auto* integer = value.get<Integer>()) {
      out_ += integer->to_string();
    } else if (const auto* real = value.get<double>()) {
      out_ += number(*real);
    } else if (value.is_text()) {
      quote(value.text());
    } else if (value.is<ListPtr>() || value.is<TuplePtr>()) {
      write_items(iterate(value), depth);
    } else if (const auto* dict = value.get<DictPtr>()) {
      write_dict(**dict, depth);
    } else {
      type_error(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
    }
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return repr_float(value);
  }

  void quote(std::string_view text) {
    out_ += '"';
    for (char32_t c : to_points(text)) {
      static constexpr std::string_view kSpecial = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
      if (const auto at = c < 0x80 ? kSpecial.find(static_cast<char>(c)) : std::string_view::npos;
          at != std::string_view::npos) {
        out_ += '\\';
        out_ += kLetters[at];
      } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7e) ||
                 (style_.escape_line_separators && (c == 0x85 || c == 0x2028 || c == 0x2029))) {
        escape(c);
      } else {
        out_ += c;
      }
    }
    out_ += '"';
  }

  void escape(char32_t c) {
    auto code = static_cast<std::uint32_t>(c);
    if (code == 0x7f) {
      out_ += '\x7f';
    } else if (code < 0x10000) {
      out_ += fmt::format("\\u{:04x}", code);
    } else {
      code -= 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (code >> 10), 0xdc00 + (code & 0x3ff));
    }
  }

  void line(int depth) {
    out_ += '\n';
    out_.repeat(*style_.indent, depth);
  }
  // Between items; a trailing blank of the separator is left out where a line end follows it.
  void separate(bool first, int depth) {
    if (!first) out_ += style_.item_separator;
    if (style_.indent) line(depth);
  }

  void write_items(const std::vector<Value>& items, int depth) {
    out_ += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      separate(i == 0, depth + 1);
      write(items[i], depth + 1);
    }
    if (!items.empty() && style_.indent) line(depth);
    out_ += ']';
  }

  static std::string key_text(const Value& key) {
    if (key.is_text()) return key.text();
    if (key.is_none()) return "null";
    if (const auto* boolean = key.get<bool>()) return *boolean ? "true" : "false";
    if (key.number()) return key.is<double>() ? number(*key.get<double>()) : to_text(key);
    type_error(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
  }

  void write_dict(const Dict& dict, int depth) {
    auto items = dict.items();
    if (style_.sort_keys) merge_sort(items, [](const auto& a, const auto& b) { return less(a.first, b.first); });
    out_ += '{';
    for (std::size_t i = 0; i < items.size(); ++i) {
      separate(i == 0, depth + 1);
      quote(key_text(items[i].first));
      out_ += style_.key_separator;
      write(items[i].second, depth + 1);
    }
    if (!items.empty() && style_.indent) line(depth);
    out_ += '}';
  }

  const JsonStyle& style_;
  TextBuilder out_;
};

}  // namespace

Value parse_json(std::string_view text) {
  if (const auto zero = text.find('\0'); zero != text.npos)  // the library takes it for the end
    value_error(fmt::format("not JSON at byte {}: a zero byte", zero + 1));
  Builder builder;
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string dump_json(const Value& value, const JsonStyle& style) {
  Dumper dumper(style);
  dumper.write(value);
  return dumper.take();
}

}  // namespace tessera::chat
