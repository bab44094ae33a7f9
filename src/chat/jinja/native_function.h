#pragma once
#include <functional>
#include <string>

#include "chat/jinja/value.h"

namespace tessera::chat {

/// A function of this program that templates can call.
class NativeFunction : public Object {
 public:
  using Body = std::function<Value(Runtime&, Arguments)>;
  NativeFunction(std::string name, Body body) : name_(std::move(name)), body_(std::move(body)) {}
  std::string type_name() const override { return "function"; }
  std::string repr() const override { return "<function " + name_ + ">"; }
  Value call(Runtime& runtime, Arguments arguments) override { return body_(runtime, std::move(arguments)); }

 private:
  std::string name_;
  Body body_;
};

inline Value make_function(std::string name, NativeFunction::Body body) {
  return ObjectPtr(std::make_shared<NativeFunction>(std::move(name), std::move(body)));
}

}  // namespace tessera::chat
