#pragma once
// What filters, tests and methods may ask of the interpreter that runs them.
#include <string>
#include <string_view>

#include "chat/jinja/value.h"

namespace tessera::chat {

class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual Value call(const Value& callee, Arguments arguments) = 0;
  virtual Value filter(const std::string& name, const Value& input, Arguments arguments) = 0;
  virtual bool test(const std::string& name, const Value& input, Arguments arguments) = 0;
};

/// object.name and object[key] as jinja2's ImmutableSandboxedEnvironment resolves them; an undefined value where there
/// is nothing.
Value get_attribute(const Value& object, std::string_view name);
Value get_item(const Value& object, const Value& key);
/// object[start:stop:step]; None where a part is left out.
Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step);
/// The attribute proper, without falling back to an item.
std::optional<Value> find_attribute(const Value& object, std::string_view name);

}  // namespace tessera::chat
