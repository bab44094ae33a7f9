#pragma once
// Modules whose calls can be intercepted: what FSDP units attach to. Derive from Block (or from Layer, its
// tensor-to-tensor case), write forward_impl, and call the module as a function. The call operator is not virtual and
// costs one branch.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace tessera::nn {

/// What happens around a module's forward. Implemented by fsdp::Unit.
class ForwardHooks {
 public:
  virtual ~ForwardHooks() = default;
  /// May replace the inputs (casts, an identity node for backward).
  virtual void before_forward(const std::vector<at::Tensor*>& inputs) = 0;
  virtual void after_forward(const std::vector<at::Tensor*>& outputs) = 0;
  /// The forward threw: leave nothing gathered.
  virtual void abort_forward() noexcept = 0;
};

class HookedModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  void set_hooks(ForwardHooks* hooks) noexcept { hooks_ = hooks; }
  bool hooked() const noexcept { return hooks_ != nullptr; }
  /// The class name that wrap policies and the printed model use, for example "T5Block".
  virtual std::string class_name() const = 0;
  /// What PyTorch prints between the parentheses of a leaf, for example "in_features=8, out_features=4, bias=False".
  virtual std::string extra_repr() const { return {}; }

 protected:
  ForwardHooks* hooks_ = nullptr;
};

// Found by argument-dependent lookup for structs of tensors; `out` keeps the order.
inline void collect_tensors(at::Tensor& t, std::vector<at::Tensor*>& out) {
  out.push_back(&t);
}
template <class T>
void collect_tensors(std::vector<T>& ts, std::vector<at::Tensor*>& out) {
  for (auto& t : ts) collect_tensors(t, out);
}

/// In and Out: at::Tensor, or structs with a free function collect_tensors(T&, std::vector<at::Tensor*>&) beside them
/// that lists every tensor member (undefined ones too).
template <class In, class Out>
class Block : public HookedModule {
 public:
  using HookedModule::HookedModule;
  Out operator()(In in) {
    if (!hooks_) return forward_impl(std::move(in));
    std::vector<at::Tensor*> tensors;
    collect_tensors(in, tensors);
    hooks_->before_forward(tensors);
    try {
      Out out = forward_impl(std::move(in));
      tensors.clear();
      collect_tensors(out, tensors);
      hooks_->after_forward(tensors);
      return out;
    } catch (...) {
      hooks_->abort_forward();
      throw;
    }
  }

 protected:
  virtual Out forward_impl(In in) = 0;
};

using Layer = Block<at::Tensor, at::Tensor>;

}  // namespace tessera::nn
