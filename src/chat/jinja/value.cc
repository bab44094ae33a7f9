#include "chat/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"
#include "chat/jinja/text_search.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

// What things cost, in the budget's units.
constexpr std::int64_t kTextWork = 40, kListWork = 60, kItemWork = 20, kCompareWork = 10, kEntryWork = 100;

// An allocation that is shared.
constexpr std::int64_t kShared = 32;

Held held_by(const std::vector<Value>& items) {
  return Held(static_cast<std::int64_t>(items.capacity() * sizeof(Value) + sizeof(List)) + kShared);
}

TextPtr make_text(std::string utf8, bool safe) {
  const auto size = static_cast<std::int64_t>(utf8.size());
  spend(kTextWork + size / 4);
  Held held(static_cast<std::int64_t>(sizeof(Text) + utf8.capacity()) + kShared);
  const bool ascii = is_ascii(utf8);
  return std::make_shared<const Text>(Text{std::move(utf8), ascii, safe, std::move(held)});
}

int nested(const std::vector<Value>& items) {
  spend(kListWork + kItemWork / 2 * static_cast<std::int64_t>(items.size()));
  int depth = 0;
  for (const auto& item : items) depth = std::max(depth, depth_of(item));
  if (depth >= kMaxNesting) fail(ErrorKind::kLimit, fmt::format("lists nest deeper than {} levels", kMaxNesting));
  return depth + 1;
}

template <typename T>
std::string number_key(const T& value) {
  return fmt::format("n{}", value);
}

std::partial_ordering order(const Integer& a, double b) {
  if (!std::isfinite(b)) return 0.0 <=> b;
  const auto whole = a <=> Integer::truncate(b);
  return whole != 0 ? whole : 0.0 <=> b - std::trunc(b);
}

// Lists and tuples.
const List* sequence(const Value& value) {
  if (const auto* list = value.get<ListPtr>()) return list->get();
  if (const auto* tuple = value.get<TuplePtr>()) return tuple->get();
  return nullptr;
}

bool same_items(const List& a, const List& b) {
  return &a == &b || std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equal);
}

bool same_dicts(const Dict& a, const Dict& b) {
  if (&a == &b || a.size() != b.size()) return &a == &b;
  return std::all_of(a.items().begin(), a.items().end(), [&](const auto& item) {
    const Value* other = b.find(item.first);
    return other != nullptr && equal(item.second, *other);
  });
}

// Keys and items are sets; two views of values are equal when they are one.
bool same_views(const View& a, const View& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == View::kItems) return same_dicts(*a.dict, *b.dict);
  if (a.kind == View::kValues) return a.dict == b.dict;
  const auto& keys = a.dict->items();
  return a.dict->size() == b.dict->size() &&
         std::all_of(keys.begin(), keys.end(), [&](const auto& item) { return b.dict->find(item.first) != nullptr; });
}

std::vector<Value> walk(const Range& range) {
  auto out = room_for(range.size());
  for (std::int64_t i = 0; i < range.size(); ++i) out.emplace_back(range.start + i * range.step);
  return out;
}

std::vector<Value> walk(const View& view) {
  auto out = room_for(static_cast<std::int64_t>(view.dict->size()));
  for (const auto& [key, value] : view.dict->items())
    out.push_back(view.kind == View::kKeys ? key : view.kind == View::kValues ? value : make_tuple({key, value}));
  return out;
}

std::vector<Value> characters(const Text& text) {
  auto out = room_for(text.ascii ? static_cast<std::int64_t>(text.utf8.size()) : count_points(text.utf8));
  if (text.ascii)
    for (const char& c : text.utf8) out.emplace_back(std::string_view(&c, 1));
  else
    for (char32_t c : to_points(text.utf8)) out.emplace_back(std::u32string(1, c));
  return out;
}

}  // namespace

std::int64_t Range::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

const Value* Dict::find(std::string_view key) const {
  spend(kTextWork + static_cast<std::int64_t>(key.size()));
  const auto it = index_.find("s" + std::string(key));
  return it == index_.end() ? nullptr : &items_[it->second].second;
}

const Value* Dict::find(const Value& key) const {
  spend(kTextWork);
  const auto it = index_.find(hash_key(key));
  return it == index_.end() ? nullptr : &items_[it->second].second;
}

void Dict::set(const Value& key, Value value) {
  std::string hash = hash_key(key);
  spend(kEntryWork);
  const auto entry = static_cast<std::int64_t>(2 * sizeof(items_[0]) + 2 * hash.size()) + 2 * kShared;
  const auto [it, inserted] = index_.try_emplace(std::move(hash), items_.size());
  if (!inserted) {
    items_[it->second].second = std::move(value);
    return;
  }
  items_.emplace_back(key, std::move(value));
  held_.add(entry);
}

Value Object::call(Runtime&, Arguments) {
  type_error(fmt::format("'{}' object is not callable", type_name()));
}

std::optional<Value> Object::attribute(std::string_view) const {
  return std::nullopt;
}

Value::Value(std::string text) : data_(make_text(std::move(text), false)) {}
Value::Value(const std::u32string& points) : Value(to_utf8(points)) {}

std::optional<Integer> Value::integer() const {
  if (const auto* integer = get<Integer>()) return *integer;
  if (const auto* boolean = get<bool>()) return Integer(*boolean ? 1 : 0);
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* real = get<double>()) return *real;
  if (const auto value = integer()) return value->to_double();
  return std::nullopt;
}

Value make_list(std::vector<Value> items) {
  const int depth = nested(items);
  Held held = held_by(items);
  return std::make_shared<const List>(List{std::move(items), depth, std::move(held)});
}

Value make_tuple(std::vector<Value> items) {
  const int depth = nested(items);
  auto tuple = std::make_shared<Tuple>();
  tuple->held = held_by(items);
  tuple->items = std::move(items);
  tuple->depth = depth;
  return std::shared_ptr<const Tuple>(std::move(tuple));
}

Value make_dict(Dict dict) {
  int depth = 0;
  for (const auto& [key, value] : dict.items()) depth = std::max({depth, depth_of(key), depth_of(value)});
  if (depth >= kMaxNesting)
    fail(ErrorKind::kLimit, fmt::format("dictionaries nest deeper than {} levels", kMaxNesting));
  dict.depth = depth + 1;
  return std::make_shared<const Dict>(std::move(dict));
}

Value make_iterator(std::vector<Value> items) {
  const int depth = nested(items);
  Held held = held_by(items);
  return std::make_shared<Iterator>(Iterator{std::move(items), 0, depth, std::move(held)});
}

Value make_undefined(std::string message, bool security) {
  spend(kTextWork);
  Held held(static_cast<std::int64_t>(sizeof(Undefined) + message.size()) + kShared);
  return std::make_shared<const Undefined>(Undefined{std::move(message), security, std::move(held)});
}

Value make_safe(std::string text) {
  return make_text(std::move(text), true);
}

bool is_safe(const Value& value) {
  return value.is_text() && (*value.get<TextPtr>())->safe;
}

Value made_of(const Value& of, std::string text) {
  return make_text(std::move(text), is_safe(of));
}

std::vector<Value> room_for(std::int64_t items) {
  spend(kItemWork * items);
  require_memory(static_cast<std::int64_t>(sizeof(Value)) * items);
  std::vector<Value> out;
  out.reserve(static_cast<std::size_t>(items));
  return out;
}

int depth_of(const Value& value) {
  if (const auto* list = sequence(value)) return list->depth;
  if (const auto* dict = value.get<DictPtr>()) return (*dict)->depth;
  if (const auto* view = value.get<View>()) return view->dict->depth;
  if (const auto* iterator = value.get<IteratorPtr>()) return (*iterator)->depth;
  if (const auto* object = value.get<ObjectPtr>()) return (*object)->depth;
  return 0;
}

std::string type_name(const Value& value) {
  struct Visitor {
    std::string operator()(const None&) const { return "NoneType"; }
    std::string operator()(bool) const { return "bool"; }
    std::string operator()(const Integer&) const { return "int"; }
    std::string operator()(double) const { return "float"; }
    std::string operator()(const TextPtr& text) const { return text->safe ? "Markup" : "str"; }
    std::string operator()(const ListPtr&) const { return "list"; }
    std::string operator()(const TuplePtr&) const { return "tuple"; }
    std::string operator()(const DictPtr&) const { return "dict"; }
    std::string operator()(const UndefinedPtr&) const { return "Undefined"; }
    std::string operator()(const Range&) const { return "range"; }
    std::string operator()(const View& view) const {
      return view.kind == View::kKeys ? "dict_keys" : view.kind == View::kValues ? "dict_values" : "dict_items";
    }
    std::string operator()(const IteratorPtr&) const { return "generator"; }
    std::string operator()(const NamespacePtr&) const { return "Namespace"; }
    std::string operator()(const ObjectPtr& object) const { return object->type_name(); }
  };
  return std::visit(Visitor{}, value.data());
}

bool truth(const Value& value) {
  if (const auto* boolean = value.get<bool>()) return *boolean;
  if (const auto* integer = value.get<Integer>()) return !integer->is_zero();
  if (const auto* real = value.get<double>()) return *real != 0;
  if (value.is_none() || value.is_undefined()) return false;
  if (const auto size = length_if_any(value)) return *size != 0;
  return true;
}

std::optional<std::partial_ordering> order_of_numbers(const Value& a, const Value& b) {
  const auto x = a.integer(), y = b.integer();
  if (x && y) return *x <=> *y;
  const auto* u = a.get<double>();
  const auto* v = b.get<double>();
  if (u && v) return *u <=> *v;
  if (x && v) return order(*x, *v);
  if (u && y) return 0 <=> order(*y, *u);
  return std::nullopt;
}

bool equal(const Value& a, const Value& b) {
  spend(kCompareWork);
  if (a.is_text() && b.is_text()) {
    if (a.text().size() != b.text().size()) return false;
    spend(static_cast<std::int64_t>(a.text().size()) / 8);
    return a.text() == b.text();
  }
  if (const auto order = order_of_numbers(a, b)) return *order == 0;
  if (a.data().index() != b.data().index()) return false;
  if (a.is_none() || a.is_undefined()) return true;
  if (const auto* list = sequence(a)) return same_items(*list, *sequence(b));
  if (const auto* dict = a.get<DictPtr>()) return same_dicts(**dict, **b.get<DictPtr>());
  if (const auto* range = a.get<Range>()) {
    const auto& other = *b.get<Range>();
    return range->size() == other.size() &&
           (range->size() == 0 || (range->start == other.start && (range->size() == 1 || range->step == other.step)));
  }
  if (const auto* view = a.get<View>()) return same_views(*view, *b.get<View>());
  if (const auto* iterator = a.get<IteratorPtr>()) return *iterator == *b.get<IteratorPtr>();
  if (const auto* space = a.get<NamespacePtr>()) return *space == *b.get<NamespacePtr>();
  return *a.get<ObjectPtr>() == *b.get<ObjectPtr>();
}

void require_defined(const Value& value) {
  if (const auto* undefined = value.get<UndefinedPtr>())
    fail((*undefined)->security ? ErrorKind::kSecurity : ErrorKind::kUndefined, (*undefined)->message);
}

bool less(const Value& a, const Value& b, std::string_view operation) {
  spend(kCompareWork);
  require_defined(a);
  require_defined(b);
  // UTF-8 sorts as the code points do.
  if (a.is_text() && b.is_text()) {
    spend(static_cast<std::int64_t>(std::min(a.text().size(), b.text().size())) / 8);
    return a.text() < b.text();
  }
  if (const auto order = order_of_numbers(a, b)) return *order < 0;
  const auto* one = sequence(a);
  const auto* two = sequence(b);
  if (one == nullptr || two == nullptr || a.data().index() != b.data().index())
    type_error(
        fmt::format("'{}' not supported between instances of '{}' and '{}'", operation, type_name(a), type_name(b)));
  for (std::size_t i = 0; i < std::min(one->items.size(), two->items.size()); ++i)
    if (!equal(one->items[i], two->items[i])) return less(one->items[i], two->items[i], operation);
  return one->items.size() < two->items.size();
}

std::string hash_key(const Value& value) {
  spend(kCompareWork);
  if (value.is_text()) {
    require_memory(static_cast<std::int64_t>(value.text().size()));
    spend(static_cast<std::int64_t>(value.text().size()));
    return "s" + value.text();
  }
  if (const auto integer = value.integer()) return number_key(integer->to_base(16));
  if (const auto* real = value.get<double>()) {
    if (std::isfinite(*real) && *real == std::floor(*real)) return number_key(Integer::truncate(*real).to_base(16));
    return "f" + repr_float(*real);
  }
  if (value.is_none()) return "none";
  if (value.is_undefined()) return "undefined";
  if (const auto* tuple = value.get<TuplePtr>()) {
    TextBuilder out;
    out += '(';
    for (const auto& item : (*tuple)->items) {
      const std::string key = hash_key(item);
      out += std::to_string(key.size());
      out += ':';
      out += key;
    }
    return out.take();
  }
  if (const auto* object = value.get<ObjectPtr>()) return fmt::format("o{}", static_cast<const void*>(object->get()));
  if (const auto* space = value.get<NamespacePtr>()) return fmt::format("o{}", static_cast<const void*>(space->get()));
  if (const auto* iterator = value.get<IteratorPtr>())
    return fmt::format("o{}", static_cast<const void*>(iterator->get()));
  if (const auto* range = value.get<Range>()) return fmt::format("r{}:{}:{}", range->start, range->size(), range->step);
  type_error(fmt::format("unhashable type: '{}'", type_name(value)));
}

std::optional<std::int64_t> length_if_any(const Value& value) {
  if (const auto* text = value.get<TextPtr>()) {
    const auto size = static_cast<std::int64_t>((*text)->utf8.size());
    if ((*text)->ascii) return size;
    spend(size / 4);
    return count_points((*text)->utf8);
  }
  if (const auto* list = sequence(value)) return static_cast<std::int64_t>(list->items.size());
  if (const auto* dict = value.get<DictPtr>()) return static_cast<std::int64_t>((*dict)->size());
  if (const auto* range = value.get<Range>()) return range->size();
  if (const auto* view = value.get<View>()) return static_cast<std::int64_t>(view->dict->size());
  if (value.is_undefined()) return 0;
  return std::nullopt;
}

std::int64_t length(const Value& value) {
  if (const auto size = length_if_any(value)) return *size;
  type_error(fmt::format("object of type '{}' has no len()", type_name(value)));
}

bool is_iterable(const Value& value) {
  return length_if_any(value).has_value() || value.is<IteratorPtr>();
}

std::vector<Value> iterate(const Value& value) {
  if (const auto* list = sequence(value)) {
    auto out = room_for(static_cast<std::int64_t>(list->items.size()));
    out.insert(out.end(), list->items.begin(), list->items.end());
    return out;
  }
  if (const auto* text = value.get<TextPtr>()) return characters(**text);
  if (const auto* dict = value.get<DictPtr>()) return walk(View{View::kKeys, *dict});
  if (const auto* range = value.get<Range>()) return walk(*range);
  if (const auto* view = value.get<View>()) return walk(*view);
  if (const auto* iterator = value.get<IteratorPtr>()) {
    auto& it = **iterator;
    auto rest = room_for(static_cast<std::int64_t>(it.items.size() - it.next));
    rest.insert(rest.end(), it.items.begin() + static_cast<std::ptrdiff_t>(it.next), it.items.end());
    it.next = it.items.size();
    return rest;
  }
  if (value.is_undefined()) return {};
  type_error(fmt::format("'{}' object is not iterable", type_name(value)));
}

bool contains(const Value& container, const Value& item) {
  if (container.is_text()) {
    if (item.is_undefined()) require_defined(item);
    if (!item.is_text())
      type_error(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
    return find_first(container.text(), item.text()) != std::string::npos;
  }
  if (const auto* dict = container.get<DictPtr>()) return (*dict)->find(item) != nullptr;
  if (const auto* view = container.get<View>(); view && view->kind == View::kKeys)
    return view->dict->find(item) != nullptr;
  if (!is_iterable(container)) type_error(fmt::format("argument of type '{}' is not iterable", type_name(container)));
  const auto items = iterate(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& other) { return equal(other, item); });
}

}  // namespace tessera::chat
