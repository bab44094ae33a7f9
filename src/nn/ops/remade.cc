#include "nn/ops/remade.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "base/scoped_value.h"
#include "nn/ops/device.h"
#include "nn/ops/recompute.h"
#include "tensor/rng.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SavedMake : torch::CustomClassHolder {
  explicit SavedMake(Make make) : make(std::move(make)) {}
  Make make;
  tensor::RandomState random = tensor::random_state();
};

}  // namespace

void save_make(AutogradContext* context, Make make) {
  context->saved_data["make"] = at::IValue::make_capsule(c10::make_intrusive<SavedMake>(std::move(make)));
}

Remade::Remade(AutogradContext* context, at::ArrayRef<at::Tensor> tensors) {
  const auto saved = c10::static_intrusive_pointer_cast<SavedMake>(context->saved_data.at("make").toCapsule());
  for (const auto& t : tensors) leaves_.push_back(t.detach().set_requires_grad(t.requires_grad()));
  const c10::AutoGradMode recorded(true);
  const ScopedValue<tensor::RandomState> random(tensor::random_state(), saved->random);
  results_ = saved->make(leaves_);
}

std::vector<at::Tensor> Remade::gradients(const std::vector<at::Tensor>& of_results) const {
  variable_list results, gradients, wanted;
  for (std::size_t i = 0; i < results_.size(); ++i) {
    if (!of_results[i].defined() || !results_[i].requires_grad()) continue;
    results.push_back(results_[i]);
    gradients.push_back(of_results[i]);
  }
  for (const auto& leaf : leaves_)
    if (leaf.requires_grad()) wanted.push_back(leaf);
  std::vector<at::Tensor> out(leaves_.size());
  if (results.empty() || wanted.empty()) return out;
  auto found = torch::autograd::grad(results, wanted, gradients, /*retain_graph=*/false, /*create_graph=*/false,
                                     /*allow_unused=*/true);
  std::size_t next = 0;
  for (std::size_t i = 0; i < out.size(); ++i)
    if (leaves_[i].requires_grad()) out[i] = std::move(found[next++]);
  return out;
}

namespace {

using OfInput = std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& tensors)>;

class RemadeNode : public torch::autograd::Function<RemadeNode> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList tensors, const OfInput& f) {
    auto saved = tensors.vec();
    ctx->saved_data["tensors"] = static_cast<std::int64_t>(saved.size());
    save_make(ctx, [f](const std::vector<at::Tensor>& all) {
      return std::vector<at::Tensor>{f(all.back(), {all.begin(), all.end() - 1})};
    });
    auto y = f(x, saved);
    keep_input(ctx, x, saved);
    ctx->save_for_backward(std::move(saved));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto count = static_cast<std::size_t>(ctx->saved_data["tensors"].toInt());
    std::vector<at::Tensor> all(saved.begin(), saved.begin() + static_cast<std::ptrdiff_t>(count));
    all.push_back(kept_input(ctx, saved, count).detach().set_requires_grad(ctx->needs_input_grad(0)));
    const Remade made(ctx, all);
    auto out = made.gradients({grads[0]});
    std::rotate(out.begin(), out.end() - 1, out.end());
    out.emplace_back();  // of f
    return out;
  }
};

}  // namespace

at::Tensor remade(const at::Tensor& x, const std::vector<at::Tensor>& tensors, OfInput f) {
  if (!has_kernels(x)) return f(x, tensors);
  return RemadeNode::apply(x, at::TensorList(tensors), f);
}

}  // namespace tessera::nn
