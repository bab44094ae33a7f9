#pragma once
// The arguments of one call, matched with the parameters' names as Python does.
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/value.h"

namespace tessera::chat {

class BoundArguments {
 public:
  /// A parameter without a name ("") is given by its place only. TypeError for too many, unknown or doubled ones, and
  /// when fewer than `required` are given.
  BoundArguments(const char* function, Arguments arguments, std::initializer_list<std::string_view> names,
                 std::size_t required = 0);

  std::size_t size() const { return values_.size(); }
  bool has(std::size_t i) const { return given_[i]; }
  const Value& operator[](std::size_t i) const { return values_[i]; }
  Value get(std::size_t i, Value otherwise) const { return given_[i] ? values_[i] : std::move(otherwise); }
  /// The argument as it is used; TypeError where its type does not fit.
  bool truth(std::size_t i, bool otherwise) const;
  std::int64_t integer(std::size_t i, std::int64_t otherwise) const;
  std::string text(std::size_t i, std::string_view otherwise) const;

 private:
  std::vector<Value> values_;
  std::vector<bool> given_;
};

/// The text of an argument of `function`; TypeError where it is none.
const std::string& required_text(const Value& value, const char* function);
/// A bound of a slice of `size` items: counted from the end where it is negative; far ones come near.
std::int64_t slice_bound(const Value& value, std::int64_t size);
/// An integer that fits 64 bits; TypeError or OverflowError otherwise.
std::int64_t as_index(const Value& value);

}  // namespace tessera::chat
