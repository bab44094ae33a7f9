#pragma once
#include <string>

#include "chat/jinja/interpreter.h"

namespace tessera::chat {

/// `self` in a template: self.NAME() is what its block of that name writes.
class TemplateSelf : public Object {
 public:
  explicit TemplateSelf(Interpreter& interpreter) : interpreter_(interpreter) {}
  std::string type_name() const override { return "TemplateReference"; }
  std::string repr() const override { return "<TemplateReference None>"; }
  bool callable() const override { return false; }
  std::optional<Value> attribute(std::string_view name) const override;

 private:
  Interpreter& interpreter_;
};

}  // namespace tessera::chat
