#pragma once
// Variables. A block ({% for %}, {% macro %} ...) has its own, and sees those around it.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja/value.h"

namespace tessera::chat {

class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) { spend(kScopeWork); }

  const Value* find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get())
      if (const auto at = scope->place_of(name); at < scope->values_.size()) return &scope->values_[at].second;
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    if (const auto at = place_of(name); at < values_.size()) {
      values_[at].second = std::move(value);
      return;
    }
    held_.add(static_cast<std::int64_t>(2 * sizeof(values_[0]) + name.size()));
    values_.emplace_back(name, std::move(value));
  }
  /// Macros refer to the scope that holds them; this ends the circle.
  void clear() { values_.clear(); }

 private:
  static constexpr std::int64_t kScopeWork = 100, kNameWork = 3;  // in the budget's units

  // Behind the last where it is not here.
  std::size_t place_of(const std::string& name) const {
    const auto compare = kNameWork + static_cast<std::int64_t>(name.size()) / 16;
    spend(compare * (1 + static_cast<std::int64_t>(values_.size())));
    std::size_t at = 0;
    while (at < values_.size() && values_[at].first != name) ++at;
    return at;
  }

  std::shared_ptr<Scope> parent_;
  std::vector<std::pair<std::string, Value>> values_;
  Held held_ = Held(128);
};

using ScopePtr = std::shared_ptr<Scope>;

}  // namespace tessera::chat
