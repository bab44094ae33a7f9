#include "fsdp/runtime/backward_hooks.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "fsdp/runtime/unit.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::shared_ptr<Unit> alive(const BackwardTicket& ticket) {
  auto unit = ticket.unit.lock();
  if (!unit)
    throw Error(
        "backward through a model whose FullyShardedDataParallel was destroyed; keep it until backward is done");
  return unit;
}

// The list must be an at::TensorList: tensors in a std::vector argument are not tracked by autograd.
struct PostBackward : torch::autograd::Function<PostBackward> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, at::IValue ticket) {
    context->saved_data["ticket"] = std::move(ticket);
    context->set_materialize_grads(false);
    return inputs.vec();
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto ticket = c10::static_intrusive_pointer_cast<BackwardTicket>(context->saved_data["ticket"].toCapsule());
    alive(*ticket)->post_backward(*ticket);
    if (at::GradMode::is_enabled()) {
      std::vector<at::Tensor*> passed;
      for (auto& g : grads) passed.push_back(&g);
      attach_pre_backward(passed, ticket);
    }
    grads.emplace_back();  // of the ticket
    return grads;
  }
};

struct LastGradientHook : torch::autograd::FunctionPostHook {
  explicit LastGradientHook(std::function<void()> done) : done(std::move(done)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    done();
    return outputs;
  }
  std::function<void()> done;
};

}  // namespace

BackwardTicket::BackwardTicket(std::weak_ptr<Unit> unit, PendingCount pending, PendingCount open, PendingCount kept)
    : unit(std::move(unit)), pending(std::move(pending)), open(std::move(open)), kept(std::move(kept)) {
  ++*this->pending;
  ++*this->open;
}

BackwardTicket::~BackwardTicket() {
  redeem(false);
  if (counted_as_kept) --*kept;
}

void BackwardTicket::redeem(bool graph_is_kept) {
  if (redeemed) return;
  redeemed = true;
  --*pending;
  --*open;
  counted_as_kept = graph_is_kept;
  if (counted_as_kept) ++*kept;
}

bool attach_post_backward(const std::vector<at::Tensor*>& inputs, const TicketPtr& ticket) {
  std::vector<at::Tensor> tracked;
  for (auto* t : inputs)
    if (t->defined() && t->requires_grad()) tracked.push_back(*t);
  if (tracked.empty()) return false;
  auto passed = PostBackward::apply(at::TensorList(tracked), at::IValue::make_capsule(ticket));
  std::size_t next = 0;
  for (auto* t : inputs)
    if (t->defined() && t->requires_grad()) *t = passed[next++];
  return true;
}

bool attach_pre_backward(const std::vector<at::Tensor*>& outputs, const TicketPtr& ticket) {
  bool attached = false;
  for (auto* t : outputs) {
    // A leaf is a parameter or an input that was passed through: nothing of this unit runs before it.
    if (!t->defined() || !t->requires_grad() || t->is_leaf()) continue;
    t->register_hook([ticket](const at::Tensor&) { alive(*ticket)->pre_backward(*ticket); });
    attached = true;
  }
  return attached;
}

void set_gradient_place(const at::Tensor& parameter, std::unique_ptr<tensor::GradientPlace> place) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(place));
}

// The node that accumulates runs when all that the parameter went into has run its backward, with or without a
// gradient.
std::shared_ptr<void> on_last_gradient(const at::Tensor& parameter, std::function<void()> done) {
  auto node = torch::autograd::impl::grad_accumulator(parameter);  // the parameter itself does not keep it
  const auto key = node->add_post_hook(std::make_unique<LastGradientHook>(std::move(done)));
  return {nullptr, [node, key](void*) { node->del_post_hook(key); }};
}

}  // namespace tessera::fsdp
