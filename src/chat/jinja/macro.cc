#include "chat/jinja/macro.h"

#include "chat/jinja/repr.h"

namespace tessera::chat {

// The body of a {% call %}.
bool Macro::is_anonymous() const {
  return statement_.kind == StatementKind::kCall;
}

std::string Macro::repr() const {
  return "<Macro " + (is_anonymous() ? "anonymous" : repr_text(statement_.text)) + ">";
}

Value Macro::call(Runtime&, Arguments arguments) {
  return interpreter_.run_macro(statement_, scope_, std::move(arguments));
}

std::optional<Value> Macro::attribute(std::string_view name) const {
  if (name == "name") return is_anonymous() ? Value() : Value(statement_.text);
  if (name == "caller") return statement_.uses_caller;
  if (name == "catch_kwargs") return statement_.uses_kwargs;
  if (name == "catch_varargs") return statement_.uses_varargs;
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const auto& parameter : statement_.parameters) names.emplace_back(parameter);
  return make_tuple(std::move(names));
}

}  // namespace tessera::chat
