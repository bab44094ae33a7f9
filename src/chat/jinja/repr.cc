#include "chat/jinja/repr.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

// A namespace may hold itself, so depth is counted here as well.
class Printer {
 public:
  void print(const Value& value) {
    if (++depth_ > 2 * kMaxNesting) fail(ErrorKind::kLimit, "a value nests too deep to be printed");
    spend(kValueWork);
    std::visit([&](const auto& data) { write(data); }, value.data());
    --depth_;
  }
  std::string take() { return out_.take(); }

 private:
  void write(const None&) { out_ += "None"; }
  void write(bool value) { out_ += value ? "True" : "False"; }
  void write(const Integer& value) { out_ += value.to_string(); }
  void write(double value) { out_ += repr_float(value); }
  void write(const TextPtr& text) {
    const std::string quoted = repr_text(text->utf8);
    out_ += text->safe ? fmt::format("Markup({})", quoted) : quoted;
  }
  void write(const ListPtr& list) { write_items("[", list->items, "]"); }
  void write(const TuplePtr& tuple) { write_items("(", tuple->items, tuple->items.size() == 1 ? ",)" : ")"); }
  void write(const DictPtr& dict) { write_dict(*dict); }
  void write(const UndefinedPtr&) { out_ += "Undefined"; }
  void write(const Range& range) {
    out_ += range.step == 1 ? fmt::format("range({}, {})", range.start, range.stop)
                            : fmt::format("range({}, {}, {})", range.start, range.stop, range.step);
  }
  void write(const View& view) {
    out_ += type_name(Value(view)) + "(";
    write_items("[", iterate(Value(view)), "]");
    out_ += ")";
  }
  void write(const IteratorPtr&) { out_ += "<generator object>"; }
  void write(const NamespacePtr& space) {
    out_ += "<Namespace ";
    write_dict(space->attributes);
    out_ += ">";
  }
  void write(const ObjectPtr& object) { out_ += object->repr(); }

  void write_items(const char* open, const std::vector<Value>& items, const char* close) {
    out_ += open;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += ", ";
      print(items[i]);
    }
    out_ += close;
  }
  void write_dict(const Dict& dict) {
    out_ += "{";
    for (std::size_t i = 0; i < dict.size(); ++i) {
      if (i > 0) out_ += ", ";
      print(dict.items()[i].first);
      out_ += ": ";
      print(dict.items()[i].second);
    }
    out_ += "}";
  }

  TextBuilder out_;
  int depth_ = 0;
};

std::string escaped(char32_t c) {
  const auto code = static_cast<std::uint32_t>(c);
  return code < 0x100     ? fmt::format("\\x{:02x}", code)
         : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                          : fmt::format("\\U{:08x}", code);
}

}  // namespace

std::string ascii(const Value& value) {
  TextBuilder out;
  for (char32_t c : to_points(repr(value))) {
    if (c < 0x80)
      out += c;
    else
      out += escaped(c);
  }
  return out.take();
}

std::string repr(const Value& value) {
  Printer printer;
  printer.print(value);
  return printer.take();
}

std::string to_text(const Value& value) {
  if (value.is_text()) return value.text();
  if (value.is_undefined()) return {};
  return repr(value);
}

std::string repr_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  std::string_view text(buffer.data(), static_cast<std::size_t>(end.ptr - buffer.data()));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const auto e = text.find('e');
  std::string digits;
  for (char c : text.substr(0, e))
    if (c != '.') digits += c;
  int exponent = 0;
  const char* first = text.data() + e + 1;
  std::from_chars(*first == '+' ? first + 1 : first, text.data() + text.size(), exponent);
  const auto size = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (size > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (size <= exponent + 1)
    return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - size), '0') + ".0";
  return out + digits.substr(0, static_cast<std::size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<std::size_t>(exponent) + 1);
}

std::string repr_text(std::string_view utf8) {
  const bool single = utf8.find('\'') != std::string_view::npos;
  const char quote = single && utf8.find('"') == std::string_view::npos ? '"' : '\'';
  TextBuilder out;
  out += quote;
  for (char32_t c : to_points(utf8)) {
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += c;
    } else {
      out += escaped(c);
    }
  }
  out += quote;
  return out.take();
}

}  // namespace tessera::chat
