#include "peft/methods/delta_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <optional>

#include "nn/layers/saved_weight.h"
#include "nn/ops/gemm.h"

namespace tessera::peft {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SavedMaker : torch::CustomClassHolder {
  explicit SavedMaker(MakeDelta make) : make(std::move(make)) {}
  MakeDelta make;
};

bool sums(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& delta) {
  return !weight.packed() && weight.tensor().scalar_type() == x.scalar_type() &&
         delta.scalar_type() == x.scalar_type() && x.scalar_type() == at::kFloat;
}

class DeltaProduct : public torch::autograd::Function<DeltaProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& bias,
                            at::TensorList tensors, const nn::Weight& weight, const MakeDelta& make) {
    variable_list saved{x, weight.tensor()};
    saved.insert(saved.end(), tensors.begin(), tensors.end());
    ctx->save_for_backward(std::move(saved));
    nn::save_weight(ctx, weight);
    ctx->saved_data["make"] = at::IValue::make_capsule(c10::make_intrusive<SavedMaker>(make));
    ctx->saved_data["bias"] = bias.has_value();
    const auto delta = make(tensors.vec());
    at::Tensor y;
    if (sums(x, weight, delta)) {
      y = nn::gemm(x, (weight.tensor() + delta).t());
    } else {
      y = weight.product(x);
      y.add_(nn::gemm(x.to(delta.scalar_type()), delta.t()));
    }
    return bias ? y.add_(*bias) : y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const auto& x = saved[0];
    const auto weight = nn::saved_weight(ctx, saved[1]);
    const auto& make = c10::static_intrusive_pointer_cast<SavedMaker>(ctx->saved_data.at("make").toCapsule())->make;
    variable_list leaves, wanted;
    at::Tensor delta;
    {
      const c10::AutoGradMode recorded(true);
      for (std::size_t i = 2; i < saved.size(); ++i) {
        leaves.push_back(saved[i].detach().set_requires_grad(saved[i].requires_grad()));
        if (saved[i].requires_grad()) wanted.push_back(leaves.back());
      }
      delta = make(leaves);
    }
    at::Tensor gx, gb;
    if (ctx->needs_input_grad(0)) {
      if (sums(x, weight, delta)) {
        gx = nn::gemm(g, weight.tensor() + delta.detach());
      } else {
        gx = weight.transposed_product(g);
        gx.add_(nn::gemm(g.to(delta.scalar_type()), delta.detach()));
      }
    }
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(1)) gb = g.sum(0);
    variable_list out{gx, gb};
    variable_list of_wanted;
    if (!wanted.empty() && delta.requires_grad()) {
      const auto gd = nn::gemm(g.to(delta.scalar_type()).t(), x.to(delta.scalar_type()));
      of_wanted = torch::autograd::grad({delta}, wanted, {gd}, /*retain_graph=*/false, /*create_graph=*/false,
                                        /*allow_unused=*/true);
    }
    std::size_t next = 0;
    for (std::size_t i = 2; i < saved.size(); ++i)
      out.push_back(saved[i].requires_grad() && next < of_wanted.size() ? of_wanted[next++] : at::Tensor());
    out.insert(out.end(), 2, at::Tensor());
    return out;
  }
};

}  // namespace

at::Tensor delta_product(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& bias,
                         const std::vector<at::Tensor>& tensors, MakeDelta make_delta) {
  if (!x.is_cpu()) {
    const auto delta = make_delta(tensors);
    const auto y = at::linear(x, weight.dequantise(x.scalar_type()), bias);
    return (y + at::linear(x.to(delta.scalar_type()), delta)).to(y.scalar_type());
  }
  const auto rows = x.reshape({-1, x.size(-1)}).contiguous();
  const auto offset = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  const auto y = DeltaProduct::apply(rows, offset, at::TensorList(tensors), weight, make_delta);
  auto sizes = x.sizes().vec();
  sizes.back() = weight.out_features();
  return y.view(sizes);
}

}  // namespace tessera::peft
