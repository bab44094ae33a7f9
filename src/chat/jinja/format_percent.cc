// format % arguments: [(name)][flags][width][.precision]conversion.
#include <fmt/format.h>

#include <cmath>

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/escape.h"
#include "chat/jinja/format_number.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/string_format.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

struct Conversion {
  bool left = false, zero = false, plus = false, blank = false;
  std::int64_t width = 0;
  NumberFormat number;
};

class PercentFormat {
 public:
  PercentFormat(const Value& format, const Value& arguments)
      : format_(format.text()), arguments_(arguments), safe_(is_safe(format)) {
    if (arguments.is<TuplePtr>())
      values_ = iterate(arguments);
    else
      values_ = {arguments};
  }

  std::string run() {
    while (at_ < format_.size()) {
      const auto percent = format_.find('%', at_);
      out_ += std::string_view(format_).substr(at_, percent - at_);
      if (percent == std::string::npos) break;
      at_ = percent + 1;
      spend(kFieldWork);
      convert();
    }
    const bool mapping =
        arguments_.is<DictPtr>() || arguments_.is_undefined() || arguments_.is<ListPtr>() || arguments_.is<Range>();
    if (next_ < values_.size() && !named_ && !mapping)
      type_error("not all arguments converted during string formatting");
    return out_.take();
  }

 private:
  char take() {
    if (at_ >= format_.size()) value_error("incomplete format");
    return format_[at_++];
  }

  Value next_value() {
    if (chosen_) return *std::exchange(chosen_, std::nullopt);
    if (next_ >= values_.size()) type_error("not enough arguments for format string");
    return values_[next_++];
  }

  void choose_by_name() {
    const auto end = format_.find(')', at_);
    if (end == std::string::npos) value_error("incomplete format key");
    const auto* dict = arguments_.get<DictPtr>();
    if (dict == nullptr) type_error("format requires a mapping");
    const std::string name = format_.substr(at_, end - at_);
    const Value* found = (*dict)->find(std::string_view(name));
    if (found == nullptr) value_error(repr_text(name));
    chosen_ = *found;
    named_ = true;
    at_ = end + 1;
  }

  std::int64_t size_or_star() {
    if (at_ < format_.size() && format_[at_] == '*') {
      ++at_;
      return as_index(next_value());
    }
    std::int64_t size = 0;
    while (at_ < format_.size() && format_[at_] >= '0' && format_[at_] <= '9') {
      size = size * 10 + (format_[at_++] - '0');
      if (size > kMaxWidth) value_error("width too big");
    }
    return size;
  }

  void convert() {
    Conversion c;
    char letter = take();
    if (letter == '(') {
      choose_by_name();
      letter = take();
    }
    for (; std::string_view("-0+ #").find(letter) != std::string_view::npos; letter = take()) {
      c.left |= letter == '-';
      c.zero |= letter == '0';
      c.plus |= letter == '+';
      c.blank |= letter == ' ';
      c.number.alternate |= letter == '#';
    }
    --at_;
    c.width = size_or_star();
    if (c.width < 0) {
      c.left = true;
      c.width = -c.width;
    }
    if (c.width > kMaxWidth) value_error("width too big");
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      c.number.precision = static_cast<int>(std::min(size_or_star(), kMaxWidth));
    }
    letter = take();
    while (letter == 'l' || letter == 'h' || letter == 'L') letter = take();
    if (letter == '%') {
      out_ += '%';
      chosen_.reset();
      return;
    }
    write(c, letter, next_value());
  }

  void write(Conversion& c, char letter, const Value& value) {
    c.number.type = letter;
    switch (letter) {
      case 's':
      case 'r':
      case 'a': {
        std::u32string text = to_points(shown(value, letter));
        if (c.number.precision >= 0) text = text.substr(0, static_cast<std::size_t>(c.number.precision));
        return add_padded(c, "", to_utf8(text), false);
      }
      case 'c': {
        if (value.is_text() && length(value) == 1) return add_padded(c, "", value.text(), false);
        const auto code = value.integer();
        if (!code || !code->is_small() || code->small() < 0 || code->small() > 0x10ffff)
          type_error("%c requires int or char");
        return add_padded(c, "", to_utf8(std::u32string(1, static_cast<char32_t>(code->small()))), false);
      }
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return write_integer(c, letter, value);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        require_defined(value);
        const auto number = value.number();
        if (!number) type_error(fmt::format("must be real number, not {}", type_name(value)));
        return add_padded(c, sign(c, std::signbit(*number)), format_float(*number, c.number), true);
      }
      default:
        value_error(fmt::format("unsupported format character '{}' (0x{:x}) at index {}", letter,
                                static_cast<unsigned char>(letter), at_ - 1));
    }
  }

  // Escaped where a safe text is filled in.
  std::string shown(const Value& value, char letter) const {
    if (safe_ && letter == 's' && is_safe(value)) return value.text();
    const std::string text = letter == 's' ? to_text(value) : letter == 'a' ? ascii(value) : repr(value);
    return safe_ ? escape_html(text) : text;
  }

  void write_integer(Conversion& c, char letter, const Value& value) {
    require_defined(value);
    auto integer = value.integer();
    const bool decimal = letter == 'd' || letter == 'i' || letter == 'u';
    if (const auto* real = value.get<double>(); real && decimal && std::isfinite(*real))
      integer = Integer::truncate(*real);
    if (!integer)
      type_error(fmt::format("%{} format: {} is required, not {}", letter, decimal ? "a real number" : "an integer",
                             type_name(value)));
    add_padded(c, sign(c, integer->is_negative()), format_integer(*integer, c.number), true);
  }

  static std::string sign(const Conversion& c, bool negative) {
    return negative ? "-" : c.plus ? "+" : c.blank ? " " : "";
  }

  void add_padded(const Conversion& c, const std::string& sign, const std::string& body, bool number) {
    const auto margin = c.width - count_points(sign) - count_points(body);
    const bool zeros = c.zero && number && !c.left;
    if (!c.left && !zeros) out_.repeat(" ", margin);
    out_ += sign;
    if (zeros) out_.repeat("0", margin);
    out_ += body;
    if (c.left) out_.repeat(" ", margin);
  }

  const std::string& format_;
  const Value& arguments_;
  std::vector<Value> values_;
  std::optional<Value> chosen_;
  std::size_t next_ = 0, at_ = 0;
  bool safe_, named_ = false;
  TextBuilder out_;
};

}  // namespace

std::string format_percent(const Value& format, const Value& arguments) {
  return PercentFormat(format, arguments).run();
}

}  // namespace tessera::chat
