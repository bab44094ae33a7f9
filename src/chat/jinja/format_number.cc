#include "chat/jinja/format_number.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"

namespace tessera::chat {
namespace {

constexpr int kMaxPrecision = 1000;

std::string upper_ascii(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

// The first `whole` digits with separators, and zeros before them up to `least` characters in all.
std::string grouped(const std::string& digits, std::size_t whole, const NumberFormat& format, std::int64_t size,
                    std::int64_t least) {
  if (format.grouping == '\0') return digits;
  auto left = static_cast<std::int64_t>(whole);
  least -= static_cast<std::int64_t>(digits.size() - whole);
  std::vector<std::string> groups;  // from the last
  for (;;) {
    const auto count = std::min(size, std::max({left, least, std::int64_t{1}})), taken = std::min(left, count);
    groups.push_back(std::string(static_cast<std::size_t>(count - taken), '0') +
                     digits.substr(static_cast<std::size_t>(left - taken), static_cast<std::size_t>(taken)));
    spend(100);
    left -= taken;
    least -= count;
    if (left <= 0 && least <= 0) break;
    --least;  // the separator
  }
  TextBuilder out;
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
    if (!out.empty()) out += format.grouping;
    out += *group;
  }
  out += std::string_view(digits).substr(whole);
  return out.take();
}

// As printf's conversion `type` does.
std::string print(double value, bool alternate, char type, int precision) {
  std::array<char, 2048> buffer{};
  const std::string conversion = fmt::format("%{}.*{}", alternate ? "#" : "", type);
  const int size = std::snprintf(buffer.data(), buffer.size(), conversion.c_str(), precision, value);
  return {buffer.data(), static_cast<std::size_t>(size)};
}

}  // namespace

std::string format_integer(const Integer& value, const NumberFormat& format) {
  const Integer magnitude = value.is_negative() ? -value : value;
  std::string digits, prefix;
  switch (format.type) {
    case '\0':
    case 'd':
    case 'i':
    case 'u':
    case 'n':
      digits = magnitude.to_string();
      break;
    case 'b':
      digits = magnitude.to_base(2);
      prefix = "0b";
      break;
    case 'o':
      digits = magnitude.to_base(8);
      prefix = "0o";
      break;
    case 'x':
      digits = magnitude.to_base(16);
      prefix = "0x";
      break;
    case 'X':
      digits = upper_ascii(magnitude.to_base(16));
      prefix = "0X";
      break;
    default:
      value_error(fmt::format("Unknown format code '{}' for object of type 'int'", format.type));
  }
  if (format.precision > kMaxPrecision) value_error("precision too large");
  if (static_cast<int>(digits.size()) < format.precision)
    digits.insert(0, static_cast<std::size_t>(format.precision) - digits.size(), '0');
  const bool decimal = prefix.empty();
  if (!format.alternate) prefix.clear();
  return prefix + grouped(digits, digits.size(), format, decimal ? 3 : 4,
                          format.zeros - static_cast<std::int64_t>(prefix.size()));
}

std::string format_float(double value, const NumberFormat& format) {
  const double magnitude = std::abs(value);
  const bool upper = format.type == 'E' || format.type == 'F' || format.type == 'G';
  if (format.precision > kMaxPrecision) value_error("precision too large");
  if (!std::isfinite(magnitude)) {
    const std::string name = std::isnan(magnitude) ? "nan" : "inf";
    return (upper ? upper_ascii(name) : name) + (format.type == '%' ? "%" : "");
  }
  const int precision = format.precision < 0 ? 6 : format.precision;
  std::string out;
  switch (format.type) {
    case '\0':
      // As repr, or as 'g' with at least one digit behind the point.
      if (format.precision < 0) {
        out = repr_float(magnitude);
      } else {
        out = print(magnitude, format.alternate, 'g', std::max(precision, 1));
        if (out.find_first_of(".e") == std::string::npos) out += ".0";
      }
      break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
      out = print(magnitude, format.alternate, static_cast<char>(format.type | 32), precision);
      break;
    case 'g':
    case 'G':
    case 'n':
      out = print(magnitude, format.alternate, 'g', std::max(precision, 1));
      break;
    case '%':
      out = print(magnitude * 100, format.alternate, 'f', precision) + '%';
      break;
    default:
      value_error(fmt::format("Unknown format code '{}' for object of type 'float'", format.type));
  }
  const auto whole = std::min(out.find_first_not_of("0123456789"), out.size());
  return grouped(upper ? upper_ascii(out) : out, whole, format, 3, format.zeros);
}

}  // namespace tessera::chat
