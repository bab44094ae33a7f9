#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/custom_class.h>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <optional>
#include <string>

#include "tensor/generators.h"
#include "tessera/base/error.h"
#include "tessera/nn/block.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What a recomputation needs besides its inputs.
struct Plan : torch::CustomClassHolder {
  explicit Plan(Recomputable run) : run(std::move(run)) {}
  Recomputable run;
  tensor::RandomState random = tensor::random_state();
  tensor::GeneratorStates generators = tensor::GeneratorStates::now();  // none: the first run drew from none of them
};

/// Puts this thread's stream of random numbers and libtorch's generators where a plan has them, and back.
class RandomScope {
 public:
  explicit RandomScope(const Plan& plan) : stream_(tensor::random_state(), plan.random) {
    if (plan.generators.empty()) return;
    generators_ = tensor::GeneratorStates::now();
    plan.generators.restore();
  }
  ~RandomScope() { generators_.restore(); }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  ScopedValue<tensor::RandomState> stream_;
  tensor::GeneratorStates generators_;
};

/// The nested backward gives gradients to all parameters inside, and they are not recorded.
void check_nested_backward() {
  const bool wanted = torch::autograd::Engine::get_default_engine().is_checkpoint_valid();
  if (wanted && !at::GradMode::is_enabled()) return;
  throw Error(std::string("activation checkpointing: ") +
              (wanted ? "a recomputed backward cannot be differentiated (create_graph)"
                      : "gradients of chosen tensors alone (torch::autograd::grad, or backward() with inputs) would "
                        "also reach the parameters of recomputed blocks") +
              "; switch checkpointing off for this forward (nn::set_checkpointing, or set_checkpointing(false))");
}

/// The last input is an empty tensor that requires grad: parameters inside get their gradients although no real input
/// requires one.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, at::IValue plan) {
    const auto p = c10::static_intrusive_pointer_cast<Plan>(plan.toCapsule());
    context->saved_data["plan"] = std::move(plan);
    context->set_materialize_grads(false);
    const variable_list all = inputs.vec();
    context->save_for_backward(all);
    auto outputs = p->run({all.begin(), all.end() - 1});
    if (p->generators == tensor::GeneratorStates::now()) p->generators = {};
    variable_list integers;
    for (const auto& t : outputs)
      if (!t.is_floating_point()) integers.push_back(t);
    context->mark_non_differentiable(integers);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    check_nested_backward();
    const auto plan = c10::static_intrusive_pointer_cast<Plan>(context->saved_data["plan"].toCapsule());
    auto inputs = context->get_saved_variables();
    inputs.pop_back();
    for (auto& t : inputs) t = t.detach().set_requires_grad(t.requires_grad());
    variable_list outputs;
    {
      const at::AutoGradMode record(true);
      const RandomScope random(*plan);
      outputs = plan->run(inputs);
    }
    TESSERA_CHECK(outputs.size() == grads.size(), "a recomputation returns as many tensors as the first run");
    variable_list roots, root_grads;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(std::move(outputs[i]));
      root_grads.push_back(std::move(grads[i]));
    }
    outputs.clear();
    grads.clear();
    if (!roots.empty()) torch::autograd::backward(roots, root_grads);
    variable_list result;
    for (auto& t : inputs) result.push_back(t.grad());
    result.resize(inputs.size() + 2);  // of the marker and of the plan
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> checkpoint(Recomputable run, const std::vector<at::Tensor>& inputs) {
  // Whose generator the block draws from, if it draws: so it is when it runs again, on that device's thread.
  const auto there = std::find_if(inputs.begin(), inputs.end(), [](const auto& t) { return !t.is_cpu(); });
  const c10::OptionalDeviceGuard guard(there == inputs.end() ? std::nullopt : std::optional(there->device()));
  auto all = inputs;
  all.push_back(at::empty({0}).set_requires_grad(true));
  auto plan = c10::make_intrusive<Plan>(std::move(run));
  return Checkpoint::apply(at::TensorList(all), at::IValue::make_capsule(std::move(plan)));
}

bool HookedModule::recorded(const std::vector<at::Tensor*>& inputs) const {
  if (!at::GradMode::is_enabled()) return false;
  for (const auto* t : inputs)
    if (t->defined() && t->requires_grad()) return true;
  for (const auto& p : parameters())
    if (p.requires_grad()) return true;
  return false;
}

void set_checkpointing(torch::nn::Module& root,
                       const std::function<bool(const std::string& name, const HookedModule& module)>& wanted) {
  if (auto* module = dynamic_cast<HookedModule*>(&root)) module->set_checkpointing(wanted("", *module));
  for (auto& item : root.named_modules("", /*include_self=*/false))
    if (auto* module = dynamic_cast<HookedModule*>(item.value().get()))
      module->set_checkpointing(wanted(item.key(), *module));
}

}  // namespace tessera::nn
