#pragma once
#include <string>

#include "chat/jinja/interpreter.h"

namespace tessera::chat {

/// {% macro %}, and the body of {% call %} as `caller`.
class Macro : public Object {
 public:
  Macro(Interpreter& interpreter, const Statement& statement, ScopePtr scope)
      : interpreter_(interpreter), statement_(statement), scope_(std::move(scope)) {}
  std::string type_name() const override { return "Macro"; }
  std::string repr() const override;
  Value call(Runtime& runtime, Arguments arguments) override;
  std::optional<Value> attribute(std::string_view name) const override;

 private:
  bool is_anonymous() const;

  Interpreter& interpreter_;
  const Statement& statement_;
  ScopePtr scope_;
};

}  // namespace tessera::chat
