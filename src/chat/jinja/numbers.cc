#include "chat/jinja/numbers.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "chat/jinja/methods.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

bool alphanumeric(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// Without blanks around, and with ASCII's digits for those of any script.
std::string plain_digits(std::string_view text) {
  std::string out;
  for (char32_t c : to_points(strip_text(text, Value(), true, true))) {
    if (c > 0x7f && is_decimal(c)) {
      // The digits of a script follow each other, tens of them.
      char32_t zero = c;
      while (is_decimal(zero - 1)) --zero;
      c = U'0' + (c - zero) % 10;
    }
    append_utf8(c, out);
  }
  return out;
}

// Underscores are allowed between digits only.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    if (i == 0 || i + 1 >= text.size() || !alphanumeric(text[i - 1]) || !alphanumeric(text[i + 1])) return std::nullopt;
  }
  return out;
}

}  // namespace

std::optional<Integer> parse_integer(std::string_view text, int base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  const std::string stripped = plain_digits(text);
  std::string_view rest = stripped;
  const bool negative = !rest.empty() && rest[0] == '-';
  if (!rest.empty() && (negative || rest[0] == '+')) rest.remove_prefix(1);
  if (rest.size() > 2 && rest[0] == '0') {
    const char radix = static_cast<char>(rest[1] | 32);
    const int named = radix == 'b' ? 2 : radix == 'o' ? 8 : radix == 'x' ? 16 : 0;
    if (named != 0 && (base == 0 || base == named)) {
      base = named;
      rest.remove_prefix(rest[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) base = 10;
  const auto digits = without_underscores(rest);
  if (!digits || digits->empty() || !alphanumeric((*digits)[0])) return std::nullopt;
  const auto magnitude = Integer::parse(*digits, base);
  return magnitude && negative ? -*magnitude : magnitude;
}

std::optional<double> parse_float(std::string_view text) {
  const auto plain = without_underscores(plain_digits(text));
  if (!plain || plain->empty()) return std::nullopt;
  std::string lower;
  for (char c : *plain) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string_view word = std::string_view(lower).substr(lower[0] == '-' || lower[0] == '+' ? 1 : 0);
  const bool named = word == "inf" || word == "infinity" || word == "nan";
  // strtod also reads hexadecimal numbers and "nan(...)", which Python does not.
  if (!named && lower.find_first_not_of("0123456789+-.e") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(lower.c_str(), &end);
  return end == lower.c_str() || *end != '\0' ? std::nullopt : std::optional<double>(value);
}

Value round_number(const Value& number, std::int64_t digits) {
  if (const auto integer = number.integer()) {
    if (digits >= 0) return *integer;
    if (digits < -5000) return std::int64_t{0};
    const Integer unit = power(10, -digits);
    const auto [quotient, remainder] = floor_divide(*integer, unit);
    const auto twice = remainder + remainder;
    const bool odd = !floor_divide(quotient, 2).remainder.is_zero();
    const bool up = twice > unit || (twice == unit && odd);
    return (up ? quotient + Integer(1) : quotient) * unit;
  }
  const double value = *number.number();
  if (!std::isfinite(value) || digits > 323) return value;
  if (digits < -308) return std::copysign(0.0, value);
  if (digits >= 0) return std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr);
  // The decimal digits of the whole part decide; they are exact.
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / unit) * unit;
}

}  // namespace tessera::chat
