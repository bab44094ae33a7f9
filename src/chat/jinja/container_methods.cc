#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/methods.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"

namespace tessera::chat {
namespace {

Value dict_get(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("get", std::move(arguments), {"", ""}, 1);
  const Value* found = (*self.get<DictPtr>())->find(bound[0]);
  return found != nullptr ? *found : bound.get(1, Value());
}

template <View::Kind kind>
Value dict_view(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("dict view", std::move(arguments), {});
  return View{kind, *self.get<DictPtr>()};
}

Value from_keys(Runtime&, const Value&, Arguments arguments) {
  const BoundArguments bound("fromkeys", std::move(arguments), {"", ""}, 1);
  Dict out;
  for (const auto& key : iterate(bound[0])) out.set(key, bound[1]);
  return make_dict(std::move(out));
}

Value copy(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("copy", std::move(arguments), {});
  return self;
}

Value index_of(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound = self.is<Range>() ? BoundArguments("index", std::move(arguments), {""}, 1)
                                                : BoundArguments("index", std::move(arguments), {"", "", ""}, 1);
  const auto items = iterate(self);
  const auto size = static_cast<std::int64_t>(items.size());
  const auto clamp = [&](std::int64_t at) { return std::clamp<std::int64_t>(at, 0, size); };
  const auto begin = bound.size() > 1 && bound.has(1) ? clamp(slice_bound(bound[1], size)) : 0,
             end = bound.size() > 1 && bound.has(2) ? clamp(slice_bound(bound[2], size)) : size;
  for (auto i = begin; i < end; ++i)
    if (equal(items[static_cast<std::size_t>(i)], bound[0])) return i;
  value_error(self.is<TuplePtr>() ? "tuple.index(x): x not in tuple"
                                  : fmt::format("{} is not in {}", repr(bound[0]), type_name(self)));
}

Value count_of(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("count", std::move(arguments), {""}, 1);
  const auto items = iterate(self);
  return static_cast<std::int64_t>(
      std::count_if(items.begin(), items.end(), [&](const Value& item) { return equal(item, bound[0]); }));
}

// Whether the keys or items of a dictionary and another collection have nothing in common.
Value is_disjoint(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("isdisjoint", std::move(arguments), {""}, 1);
  const auto others = iterate(bound[0]);
  return std::none_of(others.begin(), others.end(), [&](const Value& other) { return contains(self, other); });
}

Value is_integer(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("is_integer", std::move(arguments), {});
  const double value = *self.get<double>();
  return std::isfinite(value) && value == std::floor(value);
}

Value conjugate(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("conjugate", std::move(arguments), {});
  return self.is<double>() ? self : Value(*self.integer());
}

Value float_ratio(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("as_integer_ratio", std::move(arguments), {});
  const double value = *self.get<double>();
  if (!std::isfinite(value))
    value_error(fmt::format("cannot convert {} to integer ratio", std::isnan(value) ? "NaN" : "Infinity"));
  int exponent = 0;
  auto whole = static_cast<std::int64_t>(std::ldexp(std::frexp(value, &exponent), 53));
  for (exponent -= 53; whole != 0 && whole % 2 == 0; whole /= 2) ++exponent;
  if (whole == 0) exponent = 0;
  const Integer scale = power(2, std::abs(exponent));
  return exponent >= 0 ? make_tuple({Integer(whole) * scale, std::int64_t{1}}) : make_tuple({whole, scale});
}

Value float_hex(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("hex", std::move(arguments), {});
  const double value = *self.get<double>();
  if (!std::isfinite(value)) return repr_float(value);
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto digits = bits & ((std::uint64_t{1} << 52) - 1);
  const auto exponent = static_cast<int>(bits >> 52 & 0x7ff);
  const char* sign = std::signbit(value) ? "-" : "";
  if (value == 0) return fmt::format("{}0x0.0p+0", sign);
  return fmt::format("{}0x{}.{:013x}p{:+}", sign, exponent == 0 ? 0 : 1, digits, std::max(exponent, 1) - 1023);
}

Value bit_length(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("bit_length", std::move(arguments), {});
  return self.integer()->bit_length();
}

Value bit_count(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("bit_count", std::move(arguments), {});
  const std::string bits = self.integer()->to_base(2);
  return static_cast<std::int64_t>(std::count(bits.begin(), bits.end(), '1'));
}

Value integer_ratio(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("as_integer_ratio", std::move(arguments), {});
  return make_tuple({*self.integer(), std::int64_t{1}});
}

Value unsupported(Runtime&, const Value&, Arguments) {
  type_error("to_bytes, from_bytes and fromhex are not supported: chat templates have no bytes here");
}

using Methods = std::vector<MethodEntry>;
const Methods kDict{{"copy", copy},
                    {"fromkeys", from_keys},
                    {"get", dict_get},
                    {"items", dict_view<View::kItems>},
                    {"keys", dict_view<View::kKeys>},
                    {"values", dict_view<View::kValues>}};
const Methods kList{{"copy", copy}, {"count", count_of}, {"index", index_of}};
const Methods kTuple{{"count", count_of}, {"index", index_of}};
const Methods kView{{"isdisjoint", is_disjoint}};
const Methods kFloat{{"as_integer_ratio", float_ratio},
                     {"conjugate", conjugate},
                     {"fromhex", unsupported},
                     {"hex", float_hex},
                     {"is_integer", is_integer}};
const Methods kInteger{{"as_integer_ratio", integer_ratio}, {"bit_count", bit_count},
                       {"bit_length", bit_length},          {"conjugate", conjugate},
                       {"from_bytes", unsupported},         {"to_bytes", unsupported}};
const Methods kNone;

constexpr std::array<std::string_view, 5> kDictMutating{"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 8> kListMutating{"append", "clear", "pop",    "reverse",
                                                        "insert", "sort",  "extend", "remove"};

const Methods& methods_of(const Value& object) {
  if (object.is<DictPtr>()) return kDict;
  if (object.is<ListPtr>()) return kList;
  if (object.is<TuplePtr>() || object.is<Range>()) return kTuple;
  if (const auto* view = object.get<View>()) return view->kind == View::kValues ? kNone : kView;
  if (object.is<double>()) return kFloat;
  return object.integer() ? kInteger : kNone;
}

}  // namespace

std::vector<MethodEntry> container_methods(const Value& object) {
  return methods_of(object);
}

Method find_container_method(const Value& object, std::string_view name) {
  const auto& table = methods_of(object);
  const auto it =
      std::find_if(table.begin(), table.end(), [&](const MethodEntry& entry) { return entry.name == name; });
  return it == table.end() ? nullptr : it->method;
}

bool is_mutating(const Value& object, std::string_view name) {
  if (object.is<DictPtr>()) return std::find(kDictMutating.begin(), kDictMutating.end(), name) != kDictMutating.end();
  if (object.is<ListPtr>()) return std::find(kListMutating.begin(), kListMutating.end(), name) != kListMutating.end();
  return false;
}

}  // namespace tessera::chat
