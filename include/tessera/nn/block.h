#pragma once
// Modules whose calls can be intercepted: what FSDP units attach to. Derive from Block (or from Layer, its
// tensor-to-tensor case), write forward_impl, and call the module as a function. The call operator is not virtual and
// costs one branch.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/nn/collect_tensors.h"

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
  /// Of the module's zero_grad(): gradients that lie elsewhere.
  virtual void zero_grad() {}
  /// The module is being destroyed before what attached itself to it.
  virtual void module_destroyed() noexcept {}
};

/// Activation checkpointing (Chen et al. 2016): runs `run` without recording it, keeps only its inputs, and runs it
/// again, recorded and with the same random numbers, when backward needs what lies between. `run` takes and returns
/// defined tensors, the same number each time; it must depend on nothing that changes between forward and backward.
/// A nested backward: gradients reach parameters inside through their accumulators. Outputs that `run` does not compute
/// from something that requires grad require grad all the same, and pass nothing back.
using Recomputable = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;
std::vector<at::Tensor> checkpoint(Recomputable run, const std::vector<at::Tensor>& inputs);

class HookedModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  HookedModule() = default;
  /// A copy shares submodules and parameters, as libtorch's do, but nothing is attached to it.
  HookedModule(const HookedModule& other) : torch::nn::Module(other), checkpointing_(other.checkpointing_) {}
  HookedModule& operator=(const HookedModule& other) {
    torch::nn::Module::operator=(other);
    checkpointing_ = other.checkpointing_;
    return *this;
  }
  ~HookedModule() override {
    if (hooks_) hooks_->module_destroyed();
  }
  /// Of a sharded module the sharded gradients, too.
  void zero_grad(bool set_to_none = true) override {
    torch::nn::Module::zero_grad(set_to_none);
    if (hooks_) hooks_->zero_grad();
  }
  /// Recompute this module's activations in backward instead of keeping them; the hooks' work is not repeated. Both
  /// kinds of upstream (use_reentrant true and false) are this one: it works with frozen inputs as the second does.
  /// The module must live until backward, and so must what pointers in its input struct point to (use a shared_ptr).
  void set_checkpointing(bool on) noexcept { checkpointing_ = on; }
  bool checkpointing() const noexcept { return checkpointing_; }
  /// They must outlive the module, or be taken off (null) before they go.
  void set_hooks(ForwardHooks* hooks) noexcept { hooks_ = hooks; }
  ForwardHooks* hooks() const noexcept { return hooks_; }
  bool hooked() const noexcept { return hooks_ != nullptr; }
  /// The class name that wrap policies and the printed model use, for example "T5Block".
  virtual std::string class_name() const = 0;
  /// What PyTorch prints between the parentheses of a leaf, for example "in_features=8, out_features=4, bias=False".
  virtual std::string extra_repr() const { return {}; }
  /// False where another module reads this one's parameters outside of its call: no wrap policy makes it a unit.
  virtual bool may_be_unit() const { return true; }

 protected:
  /// A call with these inputs takes part in a graph.
  bool recorded(const std::vector<at::Tensor*>& inputs) const;
  ForwardHooks* hooks_ = nullptr;
  bool checkpointing_ = false;
};

/// Switches checkpointing on for every module below `root` (and it) that `wanted` names, off for the others.
void set_checkpointing(torch::nn::Module& root,
                       const std::function<bool(const std::string& name, const HookedModule& module)>& wanted);

/// In and Out: what collect_tensors() of nn/collect_tensors.h knows (tensors, numbers, strings, and vectors, arrays,
/// tuples, maps and optionals of them), or structs with a free function collect_tensors(T&, std::vector<at::Tensor*>&)
/// beside them that lists every tensor member (undefined ones too).
template <class In, class Out>
class Block : public HookedModule {
 public:
  using HookedModule::HookedModule;
  Out operator()(In in) {
    if (!hooks_) return checkpointing_ ? checkpointed(std::move(in)) : forward_impl(std::move(in));
    std::vector<at::Tensor*> tensors;
    collect_tensors(in, tensors);
    hooks_->before_forward(tensors);
    try {
      Out out = checkpointing_ ? checkpointed(std::move(in)) : forward_impl(std::move(in));
      tensors.clear();
      collect_tensors(out, tensors);
      hooks_->after_forward(tensors);
      return out;
    } catch (...) {
      hooks_->abort_forward();
      throw;
    }
  }
  /// The same call, for torch::nn::Sequential and AnyModule.
  Out forward(In in) { return (*this)(std::move(in)); }

 protected:
  virtual Out forward_impl(In in) = 0;

 private:
  Out checkpointed(In in);
};

template <class In, class Out>
Out Block<In, Out>::checkpointed(In in) {
  std::vector<at::Tensor*> places;
  std::vector<at::Tensor> inputs;
  std::vector<bool> given;
  collect_tensors(in, places);
  if (!recorded(places)) return forward_impl(std::move(in));
  for (auto* t : places) {  // what is kept beside the inputs must not keep them alive
    given.push_back(t->defined());
    if (t->defined()) inputs.push_back(std::move(*t));
    *t = at::Tensor();
  }
  auto first = std::make_shared<Out>();
  std::weak_ptr<Out> wanted = first;  // alive in this call only: the recomputation has no use for the struct
  auto run = [this, in = std::move(in), given, wanted](std::vector<at::Tensor> tensors) {
    In again = in;
    std::vector<at::Tensor*> slots, results;
    collect_tensors(again, slots);
    for (std::size_t i = 0, next = 0; i < slots.size(); ++i)
      if (given[i]) *slots[i] = std::move(tensors[next++]);
    tensors.clear();
    Out out = forward_impl(std::move(again));
    collect_tensors(out, results);
    for (auto* t : results)
      if (t->defined()) tensors.push_back(*t);
    if (auto keep = wanted.lock()) *keep = std::move(out);
    return tensors;
  };
  auto computed = checkpoint(std::move(run), inputs);
  places.clear();
  collect_tensors(*first, places);
  std::size_t next = 0;
  for (auto* t : places)
    if (t->defined()) *t = std::move(computed[next++]);
  return std::move(*first);
}

using Layer = Block<at::Tensor, at::Tensor>;

}  // namespace tessera::nn
