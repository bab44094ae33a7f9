#include "tasks/find_non_finite.h"

#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <deque>
#include <vector>

namespace tessera::tasks {
namespace {

/// Stands between a module and its unit.
class Watcher final : public nn::ForwardHooks {
 public:
  /// name: as messages have it.
  Watcher(std::string name, nn::ForwardHooks* unit, std::string& first)
      : name_(std::move(name)), unit_(unit), first_(first) {}
  void before_forward(const std::vector<at::Tensor*>& inputs) override {
    if (unit_) unit_->before_forward(inputs);
  }
  void after_forward(const std::vector<at::Tensor*>& outputs) override {
    for (const at::Tensor* t : outputs) {
      if (first_.empty() && t->defined() && t->is_floating_point() && !at::isfinite(*t).all().item<bool>())
        first_ = fmt::format("{} ({})", name_, c10::toString(t->scalar_type()));
    }
    if (unit_) unit_->after_forward(outputs);
  }
  void abort_forward() noexcept override {
    if (unit_) unit_->abort_forward();
  }
  void zero_grad() override {
    if (unit_) unit_->zero_grad();
  }
  void module_destroyed() noexcept override {
    if (unit_) unit_->module_destroyed();
  }
  nn::ForwardHooks* unit() const { return unit_; }

 private:
  std::string name_;
  nn::ForwardHooks* unit_;
  std::string& first_;
};

}  // namespace

std::string find_non_finite(nn::HookedModule& root, const std::function<void()>& forward) {
  std::string first;
  std::vector<std::string> units;  // that the module lies in, the outer ones first
  std::deque<Watcher> watchers;
  std::vector<nn::HookedModule*> watched;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    auto* module = dynamic_cast<nn::HookedModule*>(item.value().get());
    if (module == nullptr) continue;
    const auto is_below = [&](const std::string& unit) { return item.key().starts_with(unit + "."); };
    while (!units.empty() && !is_below(units.back())) units.pop_back();  // modules come before those below them
    if (module->hooks() != nullptr) units.push_back(item.key());
    watchers.emplace_back(fmt::format("'{}'{}", item.key(), units.empty() ? "" : " of unit '" + units.back() + "'"),
                          module->hooks(), first);
    module->set_hooks(&watchers.back());
    watched.push_back(module);
  }
  const auto put_back = [&] {
    for (std::size_t i = 0; i < watched.size(); ++i) watched[i]->set_hooks(watchers[i].unit());
  };
  try {
    forward();
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  return first;
}

}  // namespace tessera::tasks
