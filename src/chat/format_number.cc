#include "chat/format_number.h"

#include <fmt/format.h>

#include <cmath>

#include "chat/repr.h"
#include "chat/template_error.h"

namespace tessera::chat {
namespace {

constexpr int kMaxPrecision = 1000;

std::string upper_ascii(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

std::string grouped(const std::string& digits, char separator, std::size_t size) {
  if (separator == '\0') return digits;
  std::size_t whole = 0;
  while (whole < digits.size() && std::isxdigit(static_cast<unsigned char>(digits[whole]))) ++whole;
  std::string out;
  for (std::size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % size == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(whole);
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
  return (format.alternate ? prefix : "") + grouped(digits, format.grouping, decimal ? 3 : 4);
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
  const std::string_view hash = format.alternate ? "#" : "";
  std::string out;
  switch (format.type) {
    case '\0':
      // As repr, or as 'g' with at least one digit behind the point.
      if (format.precision < 0) {
        out = repr_float(magnitude);
      } else {
        out = fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
        if (out.find_first_of(".e") == std::string::npos) out += ".0";
      }
      break;
    case 'e':
    case 'E':
      out = fmt::format(fmt::runtime(fmt::format("{{:{}.{{}}e}}", hash)), magnitude, precision);
      break;
    case 'f':
    case 'F':
      out = fmt::format(fmt::runtime(fmt::format("{{:{}.{{}}f}}", hash)), magnitude, precision);
      break;
    case 'g':
    case 'G':
    case 'n':
      out = fmt::format(fmt::runtime(fmt::format("{{:{}.{{}}g}}", hash)), magnitude, std::max(precision, 1));
      break;
    case '%':
      out = fmt::format("{:.{}f}%", magnitude * 100, precision);
      break;
    default:
      value_error(fmt::format("Unknown format code '{}' for object of type 'float'", format.type));
  }
  return grouped(upper ? upper_ascii(out) : out, format.grouping, 3);
}

}  // namespace tessera::chat
