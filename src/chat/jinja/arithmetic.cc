#include "chat/jinja/arithmetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/escape.h"
#include "chat/jinja/string_format.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"

namespace tessera::chat {
namespace {

constexpr std::int64_t kOperationWork = 30;

[[noreturn]] void unsupported(std::string_view operation, const Value& a, const Value& b) {
  type_error(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'",
                         operation == "**" ? "** or pow()" : operation, type_name(a), type_name(b)));
}

template <typename Pointer>
Value join_items(const Pointer& a, const Pointer& b, Value (*make)(std::vector<Value>)) {
  auto items = room_for(static_cast<std::int64_t>(a->items.size() + b->items.size()));
  items.insert(items.end(), a->items.begin(), a->items.end());
  items.insert(items.end(), b->items.begin(), b->items.end());
  return make(std::move(items));
}

Value join_texts(const TextPtr& a, const TextPtr& b) {
  const bool safe = a->safe || b->safe;
  TextBuilder out;
  out += safe && !a->safe ? escape_html(a->utf8) : a->utf8;
  out += safe && !b->safe ? escape_html(b->utf8) : b->utf8;
  return safe ? make_safe(out.take()) : Value(out.take());
}

Value add(const Value& a, const Value& b) {
  if (const auto* text = a.get<TextPtr>()) {
    if (b.is_text()) return join_texts(*text, *b.get<TextPtr>());
    type_error(fmt::format("can only concatenate str (not \"{}\") to str", type_name(b)));
  }
  if (const auto* list = a.get<ListPtr>()) {
    if (b.is<ListPtr>()) return join_items(*list, *b.get<ListPtr>(), make_list);
    type_error(fmt::format("can only concatenate list (not \"{}\") to list", type_name(b)));
  }
  if (const auto* tuple = a.get<TuplePtr>()) {
    if (b.is<TuplePtr>()) return join_items(*tuple, *b.get<TuplePtr>(), make_tuple);
    type_error(fmt::format("can only concatenate tuple (not \"{}\") to tuple", type_name(b)));
  }
  unsupported("+", a, b);
}

Value repeat(const Value& sequence, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  if (const auto* text = sequence.get<TextPtr>()) {
    TextBuilder out;
    out.repeat((*text)->utf8, times);
    return made_of(sequence, out.take());
  }
  std::int64_t total = 0;
  if (__builtin_mul_overflow(length(sequence), times, &total) || total > kMaxItems)
    fail(ErrorKind::kLimit, "a repeated list is too long");
  auto out = room_for(total);
  const auto items = iterate(sequence);
  while (static_cast<std::int64_t>(out.size()) < total) out.insert(out.end(), items.begin(), items.end());
  return sequence.is<ListPtr>() ? make_list(std::move(out)) : make_tuple(std::move(out));
}

bool is_sequence(const Value& value) {
  return value.is_text() || value.is<ListPtr>() || value.is<TuplePtr>();
}

Value multiply(const Value& a, const Value& b) {
  const Value& sequence = is_sequence(a) ? a : b;
  const Value& times = is_sequence(a) ? b : a;
  if (!is_sequence(sequence)) unsupported("*", a, b);
  if (!times.integer()) type_error(fmt::format("can't multiply sequence by non-int of type '{}'", type_name(times)));
  return repeat(sequence, as_index(times));
}

double floor_modulo(double a, double b) {
  double out = std::fmod(a, b);
  if (out != 0 && (out < 0) != (b < 0)) out += b;
  return out == 0 ? std::copysign(0.0, b) : out;
}

void require_divisor(bool zero, const char* message) {
  if (zero) value_error(message);
}

double float_arithmetic(std::string_view operation, double a, double b) {
  if (operation == "+") return a + b;
  if (operation == "-") return a - b;
  if (operation == "*") return a * b;
  if (operation == "**") {
    require_divisor(a == 0 && b < 0, "0.0 cannot be raised to a negative power");
    const double out = std::pow(a, b);
    if (std::isnan(out) && !std::isnan(a) && !std::isnan(b)) value_error("complex numbers are not supported");
    if (std::isinf(out) && std::isfinite(a) && std::isfinite(b)) value_error("(34, 'Numerical result out of range')");
    return out;
  }
  if (operation == "/") {
    require_divisor(b == 0, "float division by zero");
    return a / b;
  }
  require_divisor(b == 0, operation == "%" ? "float modulo" : "float floor division by zero");
  if (operation == "%") return floor_modulo(a, b);
  const double rest = std::fmod(a, b);
  const double quotient = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0), whole = std::floor(quotient);
  if (quotient == 0) return std::copysign(0.0, a / b);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

double as_float(const Integer& value) {
  const double out = value.to_double();
  if (std::isinf(out)) value_error("int too large to convert to float");
  return out;
}

Value integer_arithmetic(std::string_view operation, const Integer& a, const Integer& b) {
  if (operation == "+") return a + b;
  if (operation == "-") return a - b;
  if (operation == "*") return a * b;
  if (operation == "**") {
    if (!b.is_negative()) return power(a, b);
    require_divisor(a.is_zero(), "0.0 cannot be raised to a negative power");
    return float_arithmetic(operation, as_float(a), as_float(b));
  }
  if (operation == "/") {
    require_divisor(b.is_zero(), "division by zero");
    const double out = divide(a, b);
    if (std::isinf(out)) value_error("integer division result too large for a float");
    return out;
  }
  require_divisor(b.is_zero(), operation == "%" ? "integer modulo by zero" : "integer division or modulo by zero");
  const Division division = floor_divide(a, b);
  return operation == "%" ? division.remainder : division.quotient;
}

}  // namespace

Value arithmetic(std::string_view operation, const Value& a, const Value& b) {
  spend(kOperationWork);
  if (operation == "%" && a.is_text()) return made_of(a, format_percent(a, b));
  require_defined(a);
  require_defined(b);
  const auto x = a.integer(), y = b.integer();
  if (x && y) {
    return integer_arithmetic(operation, *x, *y);
  }
  if (a.number() && b.number())
    return float_arithmetic(operation, x ? as_float(*x) : *a.get<double>(), y ? as_float(*y) : *b.get<double>());
  if (operation == "+") return add(a, b);
  if (operation == "*") return multiply(a, b);
  unsupported(operation, a, b);
}

Value negative(const Value& value) {
  require_defined(value);
  if (const auto integer = value.integer()) return -*integer;
  if (const auto* real = value.get<double>()) return -*real;
  type_error(fmt::format("bad operand type for unary -: '{}'", type_name(value)));
}

Value positive(const Value& value) {
  require_defined(value);
  if (const auto integer = value.integer()) return *integer;
  if (value.is<double>()) return value;
  type_error(fmt::format("bad operand type for unary +: '{}'", type_name(value)));
}

bool compare(std::string_view operation, const Value& a, const Value& b) {
  if (operation == "==") return equal(a, b);
  if (operation == "!=") return !equal(a, b);
  if (operation == "in") return contains(b, a);
  if (operation == "not in") return !contains(b, a);
  if (operation == "<") return less(a, b);
  if (operation == ">") return less(b, a, ">");
  // Through "not greater" NaN would compare equal.
  if (const auto order = order_of_numbers(a, b)) return operation == "<=" ? *order <= 0 : *order >= 0;
  return operation == "<=" ? !less(b, a, "<=") : !less(a, b, ">=");
}

}  // namespace tessera::chat
