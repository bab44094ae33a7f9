#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "chat/bound_arguments.h"
#include "chat/methods.h"
#include "chat/repr.h"
#include "chat/template_error.h"

namespace tessera::chat {
namespace {

struct Entry {
  std::string_view name;
  Method method;
};

template <std::size_t N>
Method find(const std::array<Entry, N>& table, std::string_view name) {
  const auto it = std::find_if(table.begin(), table.end(), [&](const Entry& entry) { return entry.name == name; });
  return it == table.end() ? nullptr : it->method;
}

Value dict_get(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("get", std::move(arguments), {"key", "default"}, 1);
  const Value* found = (*self.get<DictPtr>())->find(bound[0]);
  return found != nullptr ? *found : bound.get(1, Value());
}

template <View::Kind kind>
Value dict_view(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("dict view", std::move(arguments), {});
  return View{kind, *self.get<DictPtr>()};
}

Value copy(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("copy", std::move(arguments), {});
  return self;
}

Value index_of(Runtime& runtime, const Value& self, Arguments arguments) {
  const BoundArguments bound("index", std::move(arguments), {"value", "start", "stop"}, 1);
  const auto items = iterate(self);
  const auto size = static_cast<std::int64_t>(items.size());
  runtime.spend(size);
  const auto clamp = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size); };
  for (auto i = clamp(bound.integer(1, 0)); i < clamp(bound.integer(2, size)); ++i)
    if (equal(items[static_cast<std::size_t>(i)], bound[0])) return i;
  value_error(self.is<TuplePtr>() ? "tuple.index(x): x not in tuple"
                                  : fmt::format("{} is not in {}", repr(bound[0]), type_name(self)));
}

Value count_of(Runtime& runtime, const Value& self, Arguments arguments) {
  const BoundArguments bound("count", std::move(arguments), {"value"}, 1);
  const auto items = iterate(self);
  runtime.spend(static_cast<std::int64_t>(items.size()));
  return static_cast<std::int64_t>(
      std::count_if(items.begin(), items.end(), [&](const Value& item) { return equal(item, bound[0]); }));
}

Value is_integer(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("is_integer", std::move(arguments), {});
  const double value = *self.get<double>();
  return std::isfinite(value) && value == std::floor(value);
}

Value bit_length(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("bit_length", std::move(arguments), {});
  return self.integer()->bit_length();
}

constexpr std::array kDict{Entry{"get", dict_get}, Entry{"items", dict_view<View::kItems>},
                           Entry{"keys", dict_view<View::kKeys>}, Entry{"values", dict_view<View::kValues>},
                           Entry{"copy", copy}};
constexpr std::array kList{Entry{"index", index_of}, Entry{"count", count_of}, Entry{"copy", copy}};
constexpr std::array kTuple{Entry{"index", index_of}, Entry{"count", count_of}};
constexpr std::array kFloat{Entry{"is_integer", is_integer}};
constexpr std::array kInteger{Entry{"bit_length", bit_length}};

constexpr std::array<std::string_view, 5> kDictMutating{"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 8> kListMutating{"append", "clear", "pop",    "reverse",
                                                        "insert", "sort",  "extend", "remove"};

}  // namespace

Method find_container_method(const Value& object, std::string_view name) {
  if (object.is<DictPtr>()) return find(kDict, name);
  if (object.is<ListPtr>()) return find(kList, name);
  if (object.is<TuplePtr>() || object.is<Range>()) return find(kTuple, name);
  if (object.is<double>()) return find(kFloat, name);
  if (object.integer()) return find(kInteger, name);
  return nullptr;
}

bool is_mutating(const Value& object, std::string_view name) {
  if (object.is<DictPtr>()) return std::find(kDictMutating.begin(), kDictMutating.end(), name) != kDictMutating.end();
  if (object.is<ListPtr>()) return std::find(kListMutating.begin(), kListMutating.end(), name) != kListMutating.end();
  return false;
}

}  // namespace tessera::chat
