#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/escape.h"
#include "chat/jinja/methods.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/runtime.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

constexpr std::int64_t kLookupWork = 150;

// markupsafe.escape.
Value escaped(const Value& value) {
  return is_safe(value) ? value : make_safe(escape_html(to_text(value)));
}

// What the methods of a safe text take in is escaped first.
void escape_arguments(std::string_view method, Arguments& arguments) {
  auto& given = arguments.positional;
  const bool second = method == "replace" || method == "ljust" || method == "rjust" || method == "center";
  if (second && given.size() > 1) given[1] = escaped(given[1]);
  if (method != "join" || given.size() != 1 || !is_iterable(given[0])) return;
  std::vector<Value> items = iterate(given[0]);
  for (auto& item : items) item = escaped(item);
  given[0] = make_list(std::move(items));
}

// And what they make is safe: texts, and lists and tuples of them.
Value as_safe(const Value& made) {
  if (made.is_text()) return make_safe(made.text());
  if (!made.is<ListPtr>() && !made.is<TuplePtr>()) return made;
  std::vector<Value> items = iterate(made);
  for (auto& item : items) item = as_safe(item);
  return made.is<ListPtr>() ? make_list(std::move(items)) : make_tuple(std::move(items));
}

class BoundMethod : public Object {
 public:
  BoundMethod(std::string name, Value self, Method method)
      : name_(std::move(name)), self_(std::move(self)), method_(method) {
    spend(kLookupWork);
    depth = depth_of(self_) + 1;
    if (depth > kMaxNesting) fail(ErrorKind::kLimit, "values nest too deep");
  }
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string repr() const override {
    return fmt::format("<built-in method {} of {} object>", name_, chat::type_name(self_));
  }
  Value call(Runtime& runtime, Arguments arguments) override {
    if (!is_safe(self_)) return method_(runtime, self_, std::move(arguments));
    escape_arguments(name_, arguments);
    return as_safe(method_(runtime, self_, std::move(arguments)));
  }

 private:
  std::string name_;
  Value self_;
  Method method_;
};

// jinja2's object_type_repr.
std::string described(const Value& object) {
  if (object.is_none()) return "None";
  const std::string name = type_name(object);
  if (object.is<NamespacePtr>()) return "jinja2.utils.Namespace object";
  if (name == "Markup") return "markupsafe.Markup object";
  if (name == "LoopContext" || name == "Macro") return fmt::format("jinja2.runtime.{} object", name);
  if (name == "Cycler" || name == "Joiner") return fmt::format("jinja2.utils.{} object", name);
  return name + " object";
}

Value missing(const Value& object, const Value& key) {
  if (key.is_text())
    return make_undefined(fmt::format("{} has no attribute {}", repr_text(described(object)), repr_text(key.text())));
  return make_undefined(fmt::format("{} has no element {}", described(object), repr(key)));
}

Value refused(const Value& object, std::string_view name) {
  return make_undefined(
      fmt::format("access to attribute {} of {} object is unsafe.", repr_text(name), repr_text(type_name(object))),
      true);
}

// __class__ and the like, which every Python object has.
bool is_internal(std::string_view name) {
  return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

std::optional<Value> number_attribute(const Value& object, std::string_view name) {
  if (name == "real") return object.is<double>() ? object : Value(*object.integer());
  if (name == "imag") return object.is<double>() ? Value(0.0) : Value(std::int64_t{0});
  if (const auto integer = object.integer()) {
    if (name == "numerator") return *integer;
    if (name == "denominator") return Value(std::int64_t{1});
  }
  return std::nullopt;
}

const Value* element(const std::vector<Value>& items, std::int64_t index) {
  const auto size = static_cast<std::int64_t>(items.size());
  if (index < 0) index += size;
  return index < 0 || index >= size ? nullptr : &items[static_cast<std::size_t>(index)];
}

std::optional<Value> character(const Text& text, std::int64_t index) {
  if (text.ascii) {
    const auto size = static_cast<std::int64_t>(text.utf8.size());
    if (index < 0) index += size;
    if (index < 0 || index >= size) return std::nullopt;
    return Value(std::string_view(text.utf8).substr(static_cast<std::size_t>(index), 1));
  }
  if (index < 0) index += count_points(text.utf8);
  spend(static_cast<std::int64_t>(text.utf8.size()));
  const auto begins = [](char c) { return !is_continuation(c); };
  for (std::size_t at = 0; index >= 0 && at < text.utf8.size(); ++at) {
    if (!begins(text.utf8[at]) || index-- > 0) continue;
    std::size_t end = at + 1;
    while (end < text.utf8.size() && !begins(text.utf8[end])) ++end;
    return Value(std::string_view(text.utf8).substr(at, end - at));
  }
  return std::nullopt;
}

// object[key], where that is allowed and there.
std::optional<Value> find_item(const Value& object, const Value& key) {
  if (const auto* dict = object.get<DictPtr>()) {
    try {
      if (const Value* found = (*dict)->find(key)) return *found;
    } catch (const TemplateError& e) {  // a key that cannot be one is not there
      if (e.kind == ErrorKind::kLimit) throw;
    }
    return std::nullopt;
  }
  const auto integer = key.integer();
  if (!integer || !integer->is_small()) return std::nullopt;
  const auto index = integer->small();
  const Value* found = nullptr;
  if (const auto* list = object.get<ListPtr>()) found = element((*list)->items, index);
  if (const auto* tuple = object.get<TuplePtr>()) found = element((*tuple)->items, index);
  if (const auto* text = object.get<TextPtr>()) {
    auto found = character(**text, index);
    return found && (*text)->safe ? as_safe(*found) : found;
  }
  if (const auto* range = object.get<Range>()) {
    const auto at = index < 0 ? index + range->size() : index;
    if (at >= 0 && at < range->size()) return Value(range->start + at * range->step);
  }
  return found == nullptr ? std::nullopt : std::optional<Value>(*found);
}

struct Steps {
  std::int64_t begin, end, count, step;
};

Steps resolve_slice(std::int64_t size, const Value& start, const Value& stop, const Value& step_value) {
  const auto bound = [&](const Value& value, std::int64_t otherwise, std::int64_t low, std::int64_t high) {
    return value.is_none() ? otherwise : std::clamp(slice_bound(value, size), low, high);
  };
  const std::int64_t step = step_value.is_none() ? 1 : slice_bound(step_value, 0);
  if (step == 0) value_error("slice step cannot be zero");
  if (step > 0) {
    const auto begin = bound(start, 0, 0, size), end = bound(stop, size, 0, size);
    return {begin, end, begin < end ? (end - begin - 1) / step + 1 : 0, step};
  }
  const auto begin = bound(start, size - 1, -1, size - 1), end = bound(stop, -1, -1, size - 1);
  return {begin, end, begin > end ? (begin - end - 1) / -step + 1 : 0, step};
}

constexpr std::int64_t kItemWork = 10;

template <typename Sequence>
Sequence take(const Sequence& from, const Steps& steps) {
  spend(steps.count * (std::is_same_v<Sequence, std::vector<Value>> ? kItemWork : 1));
  require_memory(steps.count * static_cast<std::int64_t>(sizeof(from[0])));
  Sequence out;
  out.reserve(static_cast<std::size_t>(steps.count));
  for (std::int64_t i = 0; i < steps.count; ++i)
    out.push_back(from[static_cast<std::size_t>(steps.begin + i * steps.step)]);
  return out;
}

}  // namespace

std::optional<Value> find_attribute(const Value& object, std::string_view name) {
  if (const auto* space = object.get<NamespacePtr>()) {
    const Value* found = (*space)->attributes.find(name);
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }
  if (const auto* special = object.get<ObjectPtr>()) return (*special)->attribute(name);
  if (const auto* tuple = object.get<TuplePtr>(); tuple && (*tuple)->group) {
    if (name == "grouper") return (*tuple)->items[0];
    if (name == "list") return (*tuple)->items[1];
  }
  if (const auto* range = object.get<Range>()) {
    if (name == "start") return Value(range->start);
    if (name == "stop") return Value(range->stop);
    if (name == "step") return Value(range->step);
  }
  if (object.number()) {
    if (const auto found = number_attribute(object, name)) return found;
  }
  const Method method = object.is_text() ? find_text_method(name) : find_container_method(object, name);
  if (method == nullptr) return std::nullopt;
  return Value(ObjectPtr(std::make_shared<BoundMethod>(std::string(name), object, method)));
}

Value get_attribute(const Value& object, std::string_view name) {
  require_defined(object);
  if (is_mutating(object, name)) return refused(object, name);
  if (auto found = find_attribute(object, name)) return *found;
  if (auto found = find_item(object, Value(name))) return *found;
  if (is_internal(name)) return refused(object, name);
  return missing(object, Value(name));
}

Value get_item(const Value& object, const Value& key) {
  require_defined(object);
  if (auto found = find_item(object, key)) return *found;
  if (key.is_text()) {
    if (is_mutating(object, key.text()) || is_internal(key.text())) return refused(object, key.text());
    if (auto found = find_attribute(object, key.text())) return *found;
  }
  return missing(object, key);
}

Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  require_defined(object);
  if (const auto* text = object.get<TextPtr>()) {
    const auto steps = resolve_slice(length(object), start, stop, step);
    return made_of(object,
                   (*text)->ascii ? take((*text)->utf8, steps) : to_utf8(take(to_points((*text)->utf8), steps)));
  }
  if (const auto* list = object.get<ListPtr>())
    return make_list(take((*list)->items, resolve_slice(length(object), start, stop, step)));
  if (const auto* tuple = object.get<TuplePtr>())
    return make_tuple(take((*tuple)->items, resolve_slice(length(object), start, stop, step)));
  if (const auto* range = object.get<Range>()) {
    const auto steps = resolve_slice(range->size(), start, stop, step);
    return Range{range->start + steps.begin * range->step, range->start + steps.end * range->step,
                 range->step * steps.step};
  }
  // Python's own slicing, not jinja2's lookup: an error, no undefined value.
  if (object.is<DictPtr>()) type_error("unhashable type: 'slice'");
  type_error(fmt::format("'{}' object is not subscriptable", type_name(object)));
}

}  // namespace tessera::chat
