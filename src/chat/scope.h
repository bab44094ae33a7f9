#pragma once
// Variables. A block ({% for %}, {% macro %} ...) has its own, and sees those around it.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat/value.h"

namespace tessera::chat {

class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) {}

  const Value* find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get())
      for (const auto& [key, value] : scope->values_)
        if (key == name) return &value;
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    for (auto& [key, old] : values_)
      if (key == name) {
        old = std::move(value);
        return;
      }
    values_.emplace_back(name, std::move(value));
  }
  /// Macros refer to the scope that holds them; this ends the circle.
  void clear() { values_.clear(); }

 private:
  std::shared_ptr<Scope> parent_;
  std::vector<std::pair<std::string, Value>> values_;
};

using ScopePtr = std::shared_ptr<Scope>;

}  // namespace tessera::chat
