#include "peft/methods/vera.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "nn/layers/saved_weight.h"
#include "nn/ops/column_sums.h"
#include "nn/ops/device.h"
#include "nn/ops/low_rank.h"
#include "nn/ops/matmul.h"
#include "nn/ops/over_rows.h"
#include "peft/methods/torch_draws.h"

namespace tessera::peft {

void Vera::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  bind_targets(keys);
  keys.integer("projection_prng_key", projection_prng_key);
  keys.flag("save_projection", save_projection);
  keys.number(stem_ + "_dropout", vera_dropout);
  keys.number("d_initial", d_initial);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.text("bias", bias);
  keys.flag("init_weights", init_weights);
}

void Vera::check() const {
  FactorMethod::check();
  require_positive("r", r);
  require_probability(stem_ + "_dropout", vera_dropout);
}

std::vector<std::string> Vera::attach(models::Model& model, const models::ModelConfig& family) {
  projection_ = std::make_shared<SharedProjection>();  // not that of whom this is a copy
  return FactorMethod::attach(model, family);
}

std::vector<std::string> Vera::default_targets(const models::ModelConfig& family) const {
  if (family.model_type == "phi") return {"q_proj", "v_proj"};
  return FactorMethod::default_targets(family);
}

std::vector<AddedTensor> Vera::added(const LayerSizes& layer) const {
  return {{stem_ + "_lambda_b.default", {layer.out}, init_weights ? zeros() : constant(1)},
          {stem_ + "_lambda_d.default", {each_ * r}, init_weights ? constant(d_initial) : normal(1)}};
}

std::vector<AddedTensor> Vera::shared(const std::vector<LayerSizes>& layers) const {
  std::int64_t in = 0, out = 0;
  for (const auto& layer : layers) {
    in = std::max(in, layer.in);
    out = std::max(out, layer.out);
  }
  const auto draw = [=, this](bool wants_b) {
    return [=, this](const at::Tensor& t, tensor::RandomKey) {
      TorchDraws draws(projection_prng_key);
      const auto bound = [](std::int64_t fan) { return std::sqrt(3.0) * (std::sqrt(2.0) / std::sqrt(fan)); };
      const auto a = draws.uniform({each_ * r, in}, -bound(in), bound(in));
      t.copy_(wants_b ? draws.uniform({out, r}, -bound(r), bound(r)) : a);
    };
  };
  return {{stem_ + "_A.default", {each_ * r, in}, draw(false), false},
          {stem_ + "_B.default", {out, r}, draw(true), false}};
}

std::vector<std::string> Vera::file_names(const std::string& parameter) const {
  const bool projection = parameter == stem_ + "_A.default" || parameter == stem_ + "_B.default";
  if (projection && !save_projection) return {};
  return FactorMethod::file_names(parameter);
}

DeltaFactors Vera::factors(const LayerSizes& sizes, const Tensors& t) const {
  const auto &b = t[0], d = t[1].narrow(0, 0, r);
  const auto a = t[2].narrow(0, 0, r).narrow(1, 0, sizes.in), wide_b = t[3].narrow(0, 0, sizes.out);
  return {a, b.unsqueeze(1) * wide_b, 1.0, vera_dropout, d};
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class VeraProduct : public torch::autograd::Function<VeraProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& u, const at::Tensor& b,
                            const std::optional<at::Tensor>& d, const std::optional<at::Tensor>& bias,
                            const at::Tensor& wide_b, const nn::Weight& weight) {
    ctx->save_for_backward({weight.tensor(), u, b, wide_b, d.value_or(at::Tensor())});
    nn::save_weight(ctx, weight);
    ctx->saved_data["bias"] = bias.has_value();
    const auto y = weight.product(x, d ? u * *d : u, (b.unsqueeze(1) * wide_b).t());
    return bias ? y.add_(*bias) : y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const auto weight = nn::saved_weight(ctx, saved[0]);
    const auto &u = saved[1], &b = saved[2], &wide_b = saved[3], &d = saved[4];
    const auto narrow = g.to(u.scalar_type());
    auto gu = nn::low_rank_project(narrow, (b.unsqueeze(1) * wide_b).t());
    at::Tensor gx, gb, gd, of_bias;
    if (ctx->needs_input_grad(2)) gb = (nn::low_rank_gradient(d.defined() ? u * d : u, narrow).t() * wide_b).sum(1);
    if (d.defined() && ctx->needs_input_grad(3)) gd = (gu * u).sum(0, false, at::kFloat).to(d.scalar_type());
    if (ctx->needs_input_grad(0)) gx = weight.transposed_product(g);
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(4)) of_bias = nn::column_sums(g);
    if (d.defined()) gu.mul_(d);
    return {gx, gu, gb, gd, of_bias, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor vera_product(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& bias, const at::Tensor& u,
                        const at::Tensor& d, const at::Tensor& b, const at::Tensor& wide_b) {
  if (!nn::has_kernels(x)) {
    const auto y = nn::linear(x, weight.dequantise(x.scalar_type()), bias);
    return (y + nn::linear(d.defined() ? u * d : u, b.unsqueeze(1) * wide_b)).to(y.scalar_type());
  }
  return VeraProduct::apply(x, u, b, nn::optional(d), nn::optional(bias), wide_b, weight);
}

at::Tensor Vera::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const {
  if (!nn::has_kernels(x) || (layer.is_training() && vera_dropout > 0)) return FactorMethod::output(layer, sizes, x, t);
  return nn::over_rows(x, [&](const at::Tensor& rows) {
    const auto u = (*projection_)(x, rows, t[2].narrow(0, 0, r).narrow(1, 0, sizes.in));
    return vera_product(rows, layer.handle(), layer.bias, u, t[1].narrow(0, 0, r), t[0], t[3].narrow(0, 0, sizes.out));
  });
}

}  // namespace tessera::peft
