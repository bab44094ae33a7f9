#pragma once
// What a template computes with: Python's values. All but namespaces are immutable, so copies share their contents.
// What is made, walked, compared or printed here is charged to the rendering's budget (budget.h).
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "chat/jinja/budget.h"
#include "chat/jinja/integer.h"

namespace tessera::chat {

class Value;
class Runtime;

/// Containers may nest this deep; deeper ones are an error where they are made, so that walking them needs no guard.
inline constexpr int kMaxNesting = 500;

struct None {
  bool operator==(const None&) const = default;
};
struct Text {
  std::string utf8;
  bool ascii = true;
  bool safe = false;  // made by |e or |safe: adding to it escapes (markupsafe's Markup)
  Held held = Held();
};
struct Undefined {
  std::string message;    // what using it says
  bool security = false;  // the sandbox refused an attribute
  Held held = Held();
};
struct Range {
  std::int64_t start = 0, stop = 0, step = 1;
  std::int64_t size() const;
};
struct List;
struct Tuple;
class Dict;
struct Iterator;
struct Namespace;
class Object;

/// What d.keys(), d.values() and d.items() give.
struct View {
  enum Kind { kKeys, kValues, kItems } kind;
  std::shared_ptr<const Dict> dict;
};
using TextPtr = std::shared_ptr<const Text>;
using UndefinedPtr = std::shared_ptr<const Undefined>;
using ListPtr = std::shared_ptr<const List>;
using TuplePtr = std::shared_ptr<const Tuple>;
using DictPtr = std::shared_ptr<const Dict>;
using IteratorPtr = std::shared_ptr<Iterator>;
using NamespacePtr = std::shared_ptr<Namespace>;
using ObjectPtr = std::shared_ptr<Object>;

class Value {
 public:
  using Data = std::variant<None, bool, Integer, double, TextPtr, ListPtr, TuplePtr, DictPtr, UndefinedPtr, Range, View,
                            IteratorPtr, NamespacePtr, ObjectPtr>;
  Value() = default;  // None
  Value(bool value) : data_(value) {}
  Value(Integer value) : data_(std::move(value)) {}
  Value(std::int64_t value) : data_(Integer(value)) {}
  Value(double value) : data_(value) {}
  Value(std::string text);
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(const std::u32string& points);
  template <typename T>
    requires std::is_constructible_v<Data, std::shared_ptr<T>>
  Value(std::shared_ptr<T> shared) : data_(std::move(shared)) {}
  Value(ObjectPtr object) : data_(std::move(object)) {}
  Value(Range range) : data_(range) {}
  Value(View view) : data_(std::move(view)) {}

  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }
  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  const Data& data() const { return data_; }

  bool is_none() const { return is<None>(); }
  bool is_undefined() const { return is<UndefinedPtr>(); }
  bool is_text() const { return is<TextPtr>(); }
  /// The text's bytes; only where is_text().
  const std::string& text() const { return std::get<TextPtr>(data_)->utf8; }
  /// Integers and, as in Python, booleans.
  std::optional<Integer> integer() const;
  /// Integers, booleans and floats.
  std::optional<double> number() const;

 private:
  Data data_;
};

struct List {
  std::vector<Value> items;
  int depth = 1;
  Held held = Held();
};
struct Tuple : List {
  bool group = false;  // of |groupby: also has the attributes grouper and list
};
/// Insertion order. Keys are compared as Python does (1 == 1.0 == True).
class Dict {
 public:
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  std::size_t size() const { return items_.size(); }
  int depth = 1;

 private:
  std::vector<std::pair<Value, Value>> items_;
  std::unordered_map<std::string, std::size_t> index_;
  Held held_ = Held(256);
};
/// A generator: can be walked once.
struct Iterator {
  std::vector<Value> items;
  std::size_t next = 0;
  int depth = 1;
  Held held = Held();
};
struct Namespace {
  Dict attributes;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Functions, methods, macros, `loop`, and the objects of cycler() and joiner().
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;  // as in "'X' object is not callable"
  virtual std::string repr() const = 0;
  virtual bool callable() const { return true; }
  virtual Value call(Runtime& runtime, Arguments arguments);
  virtual std::optional<Value> attribute(std::string_view) const;
  int depth = 1;
  Held held = Held(256);
};

/// Containers; a limit error when they would nest too deep.
Value make_list(std::vector<Value> items);
Value make_tuple(std::vector<Value> items);
Value make_dict(Dict dict);
Value make_iterator(std::vector<Value> items);
/// `security`: the sandbox refused an attribute.
Value make_undefined(std::string message, bool security = false);
Value make_safe(std::string text);
bool is_safe(const Value& value);
/// What became of `of`: safe where that was.
Value made_of(const Value& of, std::string text);
/// Where a list of so many items is to be put together: what it takes for a moment.
std::vector<Value> room_for(std::int64_t items);
inline constexpr std::int64_t kMaxItems = std::int64_t{1} << 40;  // far above what any budget allows
int depth_of(const Value& value);

/// type(x).__name__
std::string type_name(const Value& value);
bool truth(const Value& value);
bool equal(const Value& a, const Value& b);
/// Of two numbers, compared exactly; nothing where one of them is none.
std::optional<std::partial_ordering> order_of_numbers(const Value& a, const Value& b);
/// TypeError for what Python does not order.
bool less(const Value& a, const Value& b, std::string_view operation = "<");
/// The key under which a dictionary finds it; TypeError "unhashable type" for lists and dictionaries.
std::string hash_key(const Value& value);
/// len(); TypeError where there is none.
std::int64_t length(const Value& value);
std::optional<std::int64_t> length_if_any(const Value& value);
/// What a for loop over the value sees (walks an iterator to its end); TypeError where there is nothing to walk.
std::vector<Value> iterate(const Value& value);
bool is_iterable(const Value& value);
bool contains(const Value& container, const Value& item);
/// Throws what an operation on an undefined value throws; does nothing for others.
void require_defined(const Value& value);

}  // namespace tessera::chat
