#include "chat/arithmetic.h"

#include <fmt/format.h>

#include <cmath>

#include "chat/bound_arguments.h"
#include "chat/escape.h"
#include "chat/string_format.h"
#include "chat/template_error.h"

namespace tessera::chat {
namespace {

[[noreturn]] void unsupported(std::string_view operation, const Value& a, const Value& b) {
  type_error(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'",
                         operation == "**" ? "** or pow()" : operation, type_name(a), type_name(b)));
}

template <typename Pointer>
Value join_items(Runtime& runtime, const Pointer& a, const Pointer& b, Value (*make)(std::vector<Value>)) {
  runtime.spend(static_cast<std::int64_t>(a->items.size() + b->items.size()));
  std::vector<Value> items = a->items;
  items.insert(items.end(), b->items.begin(), b->items.end());
  return make(std::move(items));
}

Value join_texts(Runtime& runtime, const TextPtr& a, const TextPtr& b) {
  runtime.spend(static_cast<std::int64_t>(a->utf8.size() + b->utf8.size()));
  if (a->safe || b->safe)
    return make_safe((a->safe ? a->utf8 : escape_html(a->utf8)) + (b->safe ? b->utf8 : escape_html(b->utf8)));
  return a->utf8 + b->utf8;
}

Value add(Runtime& runtime, const Value& a, const Value& b) {
  if (const auto* text = a.get<TextPtr>()) {
    if (b.is_text()) return join_texts(runtime, *text, *b.get<TextPtr>());
    type_error(fmt::format("can only concatenate str (not \"{}\") to str", type_name(b)));
  }
  if (const auto* list = a.get<ListPtr>()) {
    if (b.is<ListPtr>()) return join_items(runtime, *list, *b.get<ListPtr>(), make_list);
    type_error(fmt::format("can only concatenate list (not \"{}\") to list", type_name(b)));
  }
  if (const auto* tuple = a.get<TuplePtr>()) {
    if (b.is<TuplePtr>()) return join_items(runtime, *tuple, *b.get<TuplePtr>(), make_tuple);
    type_error(fmt::format("can only concatenate tuple (not \"{}\") to tuple", type_name(b)));
  }
  unsupported("+", a, b);
}

Value repeat(Runtime& runtime, const Value& sequence, std::int64_t times) {
  times = std::max<std::int64_t>(times, 0);
  const auto size = sequence.is_text() ? static_cast<std::int64_t>(sequence.text().size()) : length(sequence);
  std::int64_t total = 0;
  if (__builtin_mul_overflow(size, times, &total)) fail(ErrorKind::kLimit, "a repeated text or list is too long");
  runtime.spend(total);
  if (sequence.is_text()) {
    std::string out;
    out.reserve(static_cast<std::size_t>(total));
    for (std::int64_t i = 0; i < times && size > 0; ++i) out += sequence.text();
    return out;
  }
  std::vector<Value> out;
  const auto items = iterate(sequence);
  for (std::int64_t i = 0; i < times && size > 0; ++i) out.insert(out.end(), items.begin(), items.end());
  return sequence.is<ListPtr>() ? make_list(std::move(out)) : make_tuple(std::move(out));
}

bool is_sequence(const Value& value) {
  return value.is_text() || value.is<ListPtr>() || value.is<TuplePtr>();
}

Value multiply(Runtime& runtime, const Value& a, const Value& b) {
  const Value& sequence = is_sequence(a) ? a : b;
  const Value& times = is_sequence(a) ? b : a;
  if (!is_sequence(sequence)) unsupported("*", a, b);
  if (!times.integer()) type_error(fmt::format("can't multiply sequence by non-int of type '{}'", type_name(times)));
  return repeat(runtime, sequence, as_index(times));
}

double floor_modulo(double a, double b) {
  double out = std::fmod(a, b);
  if (out != 0 && (out < 0) != (b < 0)) out += b;
  return out == 0 ? std::copysign(0.0, b) : out;
}

void require_divisor(bool zero, const char* message) {
  if (zero) value_error(message);
}

Value integer_arithmetic(std::string_view operation, const Integer& a, const Integer& b) {
  if (operation == "+") return a + b;
  if (operation == "-") return a - b;
  if (operation == "*") return a * b;
  if (operation == "**") {
    if (!b.is_negative()) return power(a, b);
    require_divisor(a.is_zero(), "0.0 cannot be raised to a negative power");
    return std::pow(a.to_double(), b.to_double());
  }
  if (operation == "/") {
    require_divisor(b.is_zero(), "division by zero");
    return a.to_double() / b.to_double();
  }
  require_divisor(b.is_zero(), operation == "%" ? "integer modulo by zero" : "integer division or modulo by zero");
  const Division division = floor_divide(a, b);
  return operation == "%" ? division.remainder : division.quotient;
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
  const double whole = (a - floor_modulo(a, b)) / b;
  return whole == 0 ? std::copysign(0.0, a / b) : std::floor(whole + 0.5);
}

}  // namespace

Value arithmetic(Runtime& runtime, std::string_view operation, const Value& a, const Value& b) {
  if (operation == "%" && a.is_text()) return format_percent(runtime, a, b);
  require_defined(a);
  require_defined(b);
  const auto x = a.integer(), y = b.integer();
  if (x && y) {
    runtime.spend(x->is_small() && y->is_small() ? 1 : (x->bit_length() / 32 + 1) * (y->bit_length() / 32 + 1));
    return integer_arithmetic(operation, *x, *y);
  }
  const auto u = a.number(), v = b.number();
  if ((x && u && std::isinf(*u)) || (y && v && std::isinf(*v))) value_error("int too large to convert to float");
  if (u && v) return float_arithmetic(operation, *u, *v);
  if (operation == "+") return add(runtime, a, b);
  if (operation == "*") return multiply(runtime, a, b);
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
  const auto u = a.number(), v = b.number();
  if (operation == "<=") return u && v && !(a.integer() && b.integer()) ? *u <= *v : !less(b, a, "<=");
  return u && v && !(a.integer() && b.integer()) ? *u >= *v : !less(a, b, ">=");
}

}  // namespace tessera::chat
