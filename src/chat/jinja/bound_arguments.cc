#include "chat/jinja/bound_arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"

namespace tessera::chat {

BoundArguments::BoundArguments(const char* function, Arguments arguments, std::initializer_list<std::string_view> names,
                               std::size_t required)
    : values_(names.size()), given_(names.size()) {
  if (arguments.positional.size() > names.size())
    type_error(fmt::format("{}() takes at most {} arguments, {} were given", function, names.size(),
                           arguments.positional.size()));
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = std::move(arguments.positional[i]);
    given_[i] = true;
  }
  for (auto& [name, value] : arguments.named) {
    const auto it = name.empty() ? names.end() : std::find(names.begin(), names.end(), name);
    if (it == names.end()) type_error(fmt::format("{}() got an unexpected keyword argument '{}'", function, name));
    const auto i = static_cast<std::size_t>(it - names.begin());
    if (given_[i]) type_error(fmt::format("{}() got multiple values for argument '{}'", function, name));
    values_[i] = std::move(value);
    given_[i] = true;
  }
  for (std::size_t i = 0; i < required; ++i)
    if (!given_[i])
      type_error(
          fmt::format("{}() takes at least {} argument(s): '{}' is missing", function, required, *(names.begin() + i)));
}

bool BoundArguments::truth(std::size_t i, bool otherwise) const {
  return given_[i] ? chat::truth(values_[i]) : otherwise;
}

std::int64_t BoundArguments::integer(std::size_t i, std::int64_t otherwise) const {
  return given_[i] ? as_index(values_[i]) : otherwise;
}

std::string BoundArguments::text(std::size_t i, std::string_view otherwise) const {
  return given_[i] ? to_text(values_[i]) : std::string(otherwise);
}

const std::string& required_text(const Value& value, const char* function) {
  require_defined(value);
  if (!value.is_text()) type_error(fmt::format("{}() argument must be str, not {}", function, type_name(value)));
  return value.text();
}

std::int64_t slice_bound(const Value& value, std::int64_t size) {
  require_defined(value);
  const auto integer = value.integer();
  if (!integer) type_error("slice indices must be integers or None or have an __index__ method");
  constexpr std::int64_t kFar = std::int64_t{1} << 62;
  const auto at = *integer > Integer(kFar) ? kFar : *integer < Integer(-kFar) ? -kFar : integer->small();
  return at < 0 ? at + size : at;
}

std::int64_t as_index(const Value& value) {
  require_defined(value);
  const auto integer = value.integer();
  if (!integer) type_error(fmt::format("'{}' object cannot be interpreted as an integer", type_name(value)));
  if (!integer->is_small()) value_error("Python int too large to convert to C ssize_t");
  return integer->small();
}

}  // namespace tessera::chat
