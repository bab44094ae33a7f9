#include "chat/jinja/tests.h"

#include <algorithm>
#include <array>

#include "chat/jinja/arithmetic.h"
#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/methods.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

void takes_nothing(Arguments arguments) {
  const BoundArguments none("test", std::move(arguments), {});
}

Value only_argument(Arguments arguments) {
  return BoundArguments("test", std::move(arguments), {"other"}, 1)[0];
}

template <int remainder>
bool parity(Runtime&, const Value& input, Arguments arguments) {
  takes_nothing(std::move(arguments));
  return equal(arithmetic("%", input, std::int64_t{2}), std::int64_t{remainder});
}

bool divisible(Runtime&, const Value& input, Arguments arguments) {
  return equal(arithmetic("%", input, only_argument(std::move(arguments))), std::int64_t{0});
}

bool defined(Runtime&, const Value& input, Arguments) {
  return !input.is_undefined();
}
bool undefined(Runtime&, const Value& input, Arguments) {
  return input.is_undefined();
}
bool none(Runtime&, const Value& input, Arguments) {
  return input.is_none();
}
bool boolean(Runtime&, const Value& input, Arguments) {
  return input.is<bool>();
}
template <bool wanted>
bool is_bool(Runtime&, const Value& input, Arguments) {
  return input.is<bool>() && *input.get<bool>() == wanted;
}
bool integer(Runtime&, const Value& input, Arguments) {
  return input.is<Integer>();
}
bool real(Runtime&, const Value& input, Arguments) {
  return input.is<double>();
}
bool number(Runtime&, const Value& input, Arguments) {
  return input.number().has_value();
}
bool is_string(Runtime&, const Value& input, Arguments) {
  return input.is_text();
}
bool mapping(Runtime&, const Value& input, Arguments) {
  return input.is<DictPtr>();
}
bool sequence(Runtime&, const Value& input, Arguments) {
  return length_if_any(input).has_value() && !input.is<View>();  // an undefined value is one, as in jinja2
}
bool iterable(Runtime&, const Value& input, Arguments) {
  return is_iterable(input);
}
bool callable(Runtime&, const Value& input, Arguments) {
  const auto* object = input.get<ObjectPtr>();
  return input.is_undefined() || (object != nullptr && (*object)->callable());
}
bool escaped(Runtime&, const Value& input, Arguments) {
  return input.is_text() && (*input.get<TextPtr>())->safe;
}
bool lower_case(Runtime&, const Value& input, Arguments) {
  return is_cased_as(to_text(input), is_lower, is_upper);
}
bool upper_case(Runtime&, const Value& input, Arguments) {
  return is_cased_as(to_text(input), is_upper, is_lower);
}
/// Python looks names up in a dictionary, where lists are an error.
std::string name_in_table(const Value& input) {
  hash_key(input);
  return to_text(input);
}
bool is_filter(Runtime&, const Value& input, Arguments) {
  return find_filter(name_in_table(input)) != nullptr;
}
bool is_test(Runtime&, const Value& input, Arguments) {
  return find_test(name_in_table(input)) != nullptr;
}

// A test that takes nothing but its input.
template <bool (*body)(Runtime&, const Value&, Arguments)>
bool alone(Runtime& runtime, const Value& input, Arguments arguments) {
  takes_nothing(std::move(arguments));
  return body(runtime, input, Arguments());
}

bool contained(Runtime&, const Value& input, Arguments arguments) {
  return contains(only_argument(std::move(arguments)), input);
}

// Python's `is`: small values are one object, containers are the same when they share their contents.
bool same(Runtime&, const Value& input, Arguments arguments) {
  const Value other = only_argument(std::move(arguments));
  if (input.data().index() != other.data().index()) return false;
  if (const auto* list = input.get<ListPtr>()) return *list == *other.get<ListPtr>();
  if (const auto* tuple = input.get<TuplePtr>())
    return *tuple == *other.get<TuplePtr>() || ((*tuple)->items.empty() && (*other.get<TuplePtr>())->items.empty());
  if (const auto* dict = input.get<DictPtr>()) return *dict == *other.get<DictPtr>();
  if (const auto* undefined = input.get<UndefinedPtr>()) return *undefined == *other.get<UndefinedPtr>();
  return equal(input, other);
}

template <char a, char b>
bool compared(Runtime&, const Value& input, Arguments arguments) {
  constexpr std::array<char, 3> kOperation{a, b, '\0'};
  return compare(kOperation.data(), input, only_argument(std::move(arguments)));
}

}  // namespace

const std::vector<TestEntry>& all_tests() {
  static const std::vector<TestEntry> table{
      {"!=", compared<'!', '='>},
      {"<", compared<'<', '\0'>},
      {"<=", compared<'<', '='>},
      {"==", compared<'=', '='>},
      {">", compared<'>', '\0'>},
      {">=", compared<'>', '='>},
      {"boolean", alone<boolean>},
      {"callable", alone<callable>},
      {"defined", alone<defined>},
      {"divisibleby", divisible},
      {"eq", compared<'=', '='>},
      {"equalto", compared<'=', '='>},
      {"escaped", alone<escaped>},
      {"even", parity<0>},
      {"false", alone<is_bool<false>>},
      {"filter", alone<is_filter>},
      {"float", alone<real>},
      {"ge", compared<'>', '='>},
      {"greaterthan", compared<'>', '\0'>},
      {"gt", compared<'>', '\0'>},
      {"in", contained},
      {"integer", alone<integer>},
      {"iterable", alone<iterable>},
      {"le", compared<'<', '='>},
      {"lessthan", compared<'<', '\0'>},
      {"lower", alone<lower_case>},
      {"lt", compared<'<', '\0'>},
      {"mapping", alone<mapping>},
      {"ne", compared<'!', '='>},
      {"none", alone<none>},
      {"number", alone<number>},
      {"odd", parity<1>},
      {"sameas", same},
      {"sequence", alone<sequence>},
      {"string", alone<is_string>},
      {"test", alone<is_test>},
      {"true", alone<is_bool<true>>},
      {"undefined", alone<undefined>},
      {"upper", alone<upper_case>},
  };
  return table;
}

Test find_test(std::string_view name) {
  const auto& table = all_tests();
  const auto it = std::find_if(table.begin(), table.end(), [&](const TestEntry& entry) { return entry.name == name; });
  return it == table.end() ? nullptr : it->test;
}

}  // namespace tessera::chat
