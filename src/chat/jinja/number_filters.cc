#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>

#include "chat/jinja/arithmetic.h"
#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/methods.h"
#include "chat/jinja/numbers.h"
#include "chat/jinja/template_error.h"

namespace tessera::chat {
namespace {

Value absolute(Runtime&, const Value& input, Arguments) {
  require_defined(input);
  if (const auto integer = input.integer()) return integer->is_negative() ? -*integer : *integer;
  if (const auto* real = input.get<double>()) return std::abs(*real);
  type_error(fmt::format("bad operand type for abs(): '{}'", type_name(input)));
}

Value whole_part(double number) {
  if (!std::isfinite(number)) value_error("cannot convert float infinity or NaN to integer");
  return Integer::truncate(number);
}

Value to_int(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_int", std::move(arguments), {"default", "base"});
  require_defined(input);
  if (input.is_text())
    if (const auto integer = parse_integer(input.text(), static_cast<int>(bound.integer(1, 10)))) return *integer;
  if (const auto integer = input.integer()) return *integer;
  std::optional<double> real;
  if (input.is_text()) real = parse_float(input.text());
  if (const auto* number = input.get<double>()) real = *number;
  if (!real || !std::isfinite(*real)) return bound.get(0, std::int64_t{0});
  return Integer::truncate(*real);
}

Value to_float(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_float", std::move(arguments), {"default"});
  require_defined(input);
  if (const auto number = input.number()) {
    if (std::isinf(*number) && input.integer()) value_error("int too large to convert to float");
    return *number;
  }
  if (input.is_text())
    if (const auto number = parse_float(input.text())) return *number;
  return bound.get(0, 0.0);
}

Value round(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_round", std::move(arguments), {"precision", "method"});
  const std::string method = bound.text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor") value_error("method must be common, ceil or floor");
  require_defined(input);
  if (!input.number()) type_error(fmt::format("type {} doesn't define __round__ method", type_name(input)));
  if (method == "common" && bound.has(0) && bound[0].is_none()) {  // Python's round(number): an integer
    const Value rounded = round_number(input, 0);
    return rounded.is<double>() ? whole_part(*rounded.get<double>()) : rounded;
  }
  const auto precision = bound.integer(0, 0);
  if (method == "common") return round_number(input, precision);
  const Value scale =
      precision >= 0 ? Value(power(10, precision)) : Value(std::pow(10.0, static_cast<double>(precision)));
  const Value scaled = arithmetic("*", input, scale);
  if (!scaled.is<double>()) return arithmetic("/", scaled, scale);
  const double number = *scaled.get<double>();
  return arithmetic("/", whole_part(method == "ceil" ? std::ceil(number) : std::floor(number)), scale);
}

Value filesizeformat(Runtime&, const Value& input, Arguments arguments) {
  const BoundArguments bound("do_filesizeformat", std::move(arguments), {"binary"});
  const bool binary = bound.truth(0, false);
  std::optional<double> bytes = input.number();
  if (!bytes && input.is_text()) bytes = parse_float(input.text());
  if (!bytes) type_error(fmt::format("a size must be a number, not '{}'", type_name(input)));
  if (*bytes == 1) return "1 Byte";
  const double base = binary ? 1024 : 1000;
  if (*bytes < base) return whole_part(*bytes).integer()->to_string() + " Bytes";
  static constexpr std::array<char, 8> kPrefixes{'k', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y'};
  double unit = base * base;
  std::size_t i = 0;
  for (; i + 1 < kPrefixes.size() && *bytes >= unit; ++i) unit *= base;
  const std::string name =
      binary ? std::string(1, i == 0 ? 'K' : kPrefixes[i]) + "iB" : std::string(1, kPrefixes[i]) + "B";
  return fmt::format("{:.1f} {}", base * *bytes / unit, name);
}

}  // namespace

const std::vector<FilterEntry>& number_filters() {
  static const std::vector<FilterEntry> table{
      {"abs", absolute}, {"filesizeformat", filesizeformat}, {"float", to_float}, {"int", to_int}, {"round", round},
  };
  return table;
}

}  // namespace tessera::chat
