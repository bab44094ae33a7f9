#include "tasks/find_non_finite.h"

#include <ATen/ops/isfinite.h>

#include <deque>

namespace tessera::tasks {
namespace {

/// Stands between a module and its unit.
class Watcher final : public nn::ForwardHooks {
 public:
  Watcher(std::string name, nn::ForwardHooks* unit, std::string& first)
      : name_(std::move(name)), unit_(unit), first_(first) {}
  void before_forward(const std::vector<at::Tensor*>& inputs) override {
    if (unit_) unit_->before_forward(inputs);
  }
  void after_forward(const std::vector<at::Tensor*>& outputs) override {
    for (const at::Tensor* t : outputs) {
      if (first_.empty() && t->defined() && t->is_floating_point() && !at::isfinite(*t).all().item<bool>())
        first_ = name_;
    }
    if (unit_) unit_->after_forward(outputs);
  }
  void abort_forward() noexcept override {
    if (unit_) unit_->abort_forward();
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
  std::deque<Watcher> watchers;
  std::vector<nn::HookedModule*> watched;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    auto* module = dynamic_cast<nn::HookedModule*>(item.value().get());
    if (module == nullptr) continue;
    watchers.emplace_back(item.key(), module->hooks(), first);
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
