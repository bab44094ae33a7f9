#include "peft/methods/road.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/ops/remade.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Rows [N, out] in halves of groups, [N, groups, half a group]: the first ones and the second ones.
struct Halves {
  at::Tensor first, second;
  Halves(const at::Tensor& rows, const at::Tensor& like) {
    const auto parts = rows.view({rows.size(0), like.size(0), 2, like.size(2)});
    first = parts.select(2, 0);
    second = parts.select(2, 1);
  }
};

// Keeps y and the tensors, and makes c and s of these again in backward.
class Turned : public torch::autograd::Function<Turned> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, at::TensorList tensors, const nn::Make& make) {
    auto saved = tensors.vec();
    const auto made = make(saved);
    saved.push_back(y);
    ctx->save_for_backward(std::move(saved));
    nn::save_make(ctx, make);
    const auto &c = made[0], &s = made[1];
    const auto out = at::empty_like(y);
    const Halves from(y, c);
    Halves to(out, c);
    at::mul_out(to.first, from.first, c.select(1, 0));
    to.first.addcmul_(from.second, s.select(1, 0), -1);
    at::mul_out(to.second, from.second, c.select(1, 1));
    to.second.addcmul_(from.first, s.select(1, 1));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto y = saved.back();
    saved.pop_back();
    const auto g = grads[0].contiguous();
    const nn::Remade made(ctx, saved);
    const auto c = made[0].detach(), s = made[1].detach();
    const Halves of_y(y, c), of_g(g, c);
    at::Tensor gc, gs;
    if (made[0].requires_grad()) {
      gc = (g * y).sum(0, false, at::kFloat).view(c.sizes()).to(c.scalar_type());
      gs = at::empty_like(s);
      gs.select(1, 0).copy_((of_g.first * of_y.second).sum(0, false, at::kFloat).neg_());
      gs.select(1, 1).copy_((of_g.second * of_y.first).sum(0, false, at::kFloat));
    }
    at::Tensor gy;
    if (ctx->needs_input_grad(0)) {
      gy = at::empty_like(g);
      Halves to(gy, c);
      at::mul_out(to.first, of_g.first, c.select(1, 0));
      to.first.addcmul_(of_g.second, s.select(1, 1));
      at::mul_out(to.second, of_g.second, c.select(1, 1));
      to.second.addcmul_(of_g.first, s.select(1, 0), -1);
    }
    variable_list out{gy};
    const auto of_tensors = made.gradients({gc, gs});
    out.insert(out.end(), of_tensors.begin(), of_tensors.end());
    out.emplace_back();  // of make
    return out;
  }
};

}  // namespace

void Road::bind(ConfigKeys& keys) {
  keys.text("variant", variant);
  keys.integer("group_size", group_size);
  keys.flag("init_weights", init_weights);
  keys.names_or_regex("target_modules", target_modules, target_regex);
}

void Road::check() const {
  TensorMethod::check();
  if (variant != "road_1" && variant != "road_2" && variant != "road_4")
    throw ConfigError("variant of ROAD is one of road_1, road_2, road_4; found '" + variant + "'", "variant");
  if (group_size <= 0 || group_size % 2 != 0) {
    throw ConfigError("group_size must be positive and even, found " + std::to_string(group_size), "group_size");
  }
}

std::vector<AddedTensor> Road::added(const LayerSizes& layer) const {
  if (layer.out % group_size != 0) {
    throw ConfigError("group_size " + std::to_string(group_size) + " does not divide the outputs of '" + layer.name +
                          "' (" + std::to_string(layer.out) + ")",
                      "group_size");
  }
  const auto size = variant == "road_1" ? layer.out / 2 : variant == "road_2" ? layer.out : 2 * layer.out;
  return {{"road_theta.default", {size}, init_weights ? zeros() : normal(0.5)},
          {"road_alpha.default", {size}, init_weights ? constant(1) : normal(0.5, 1)}};
}

Tensors Road::factors(const Tensors& t) const {
  const auto half = group_size / 2;
  if (variant == "road_4") {  // for each group what c is made of, and then what s is made of
    const auto theta = t[0].view({-1, 2, 2, half}), alpha = t[1].view({-1, 2, 2, half});
    return {alpha.select(1, 0) * theta.select(1, 0).cos(), alpha.select(1, 1) * theta.select(1, 1).sin()};
  }
  const auto each = [&](const at::Tensor& values) {
    return variant == "road_1" ? values.view({-1, 1, half}).expand({-1, 2, half}) : values.view({-1, 2, half});
  };
  const auto theta = each(t[0]), alpha = each(t[1]);
  return {alpha * theta.cos(), alpha * theta.sin()};
}

at::Tensor Road::turned(const at::Tensor& y, const Tensors& t) const {
  return Turned::apply(y, at::TensorList(t),
                       nn::Make([this_one = *this](const Tensors& tensors) { return this_one.factors(tensors); }));
}

at::Tensor Road::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const {
  const auto y = layer.product(x);
  const auto rows = y.reshape({-1, sizes.out}).to(t[0].scalar_type());
  return turned(rows, t).view(y.sizes()).to(y.scalar_type());
}

at::Tensor Road::merged_weight(const LayerSizes&, const at::Tensor& w, const Tensors& t) const {
  return turned(w.t().contiguous(), t).t();
}

at::Tensor Road::merged_bias(const at::Tensor& b, const Tensors& t) const {
  return turned(b.unsqueeze(0), t).squeeze(0);
}

}  // namespace tessera::peft
