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
#include "nn/ops/over_rows.h"
#include "peft/methods/torch_draws.h"

namespace tessera::peft {

void Vera::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  bind_targets(keys);
  keys.integer("projection_prng_key", projection_prng_key);
  keys.flag("save_projection", save_projection);
  keys.number("vera_dropout", vera_dropout);
  keys.number("d_initial", d_initial);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.text("bias", bias);
  keys.flag("init_weights", init_weights);
}

void Vera::check() const {
  FactorMethod::check();
  require_positive("r", r);
  require_probability("vera_dropout", vera_dropout);
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
  return {{"vera_lambda_b.default", {layer.out}, init_weights ? zeros() : constant(1)},
          {"vera_lambda_d.default", {r}, init_weights ? constant(d_initial) : normal(1)}};
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
      const auto a = draws.uniform({r, in}, -bound(in), bound(in));
      t.copy_(wants_b ? draws.uniform({out, r}, -bound(r), bound(r)) : a);
    };
  };
  return {{"vera_A.default", {r, in}, draw(false), false}, {"vera_B.default", {out, r}, draw(true), false}};
}

std::vector<std::string> Vera::file_names(const std::string& parameter) const {
  const bool projection = parameter == "vera_A.default" || parameter == "vera_B.default";
  if (projection && !save_projection) return {};
  return FactorMethod::file_names(parameter);
}

DeltaFactors Vera::factors(const LayerSizes& sizes, const Tensors& t) const {
  const auto &b = t[0], &d = t[1];
  const auto a = t[2].narrow(1, 0, sizes.in), wide_b = t[3].narrow(0, 0, sizes.out);
  return {a, b.unsqueeze(1) * wide_b, 1.0, vera_dropout, d};
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x W^T + bias + ((u * d) B^T) * b, u = x A^T; W and B frozen.
class VeraProduct : public torch::autograd::Function<VeraProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& u, const at::Tensor& b,
                            const at::Tensor& d, const std::optional<at::Tensor>& bias, const at::Tensor& wide_b,
                            const nn::Weight& weight) {
    ctx->save_for_backward({weight.tensor(), u, b, d, wide_b});
    nn::save_weight(ctx, weight);
    ctx->saved_data["bias"] = bias.has_value();
    const auto y = weight.product(x, u * d, (b.unsqueeze(1) * wide_b).t());
    return bias ? y.add_(*bias) : y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const auto weight = nn::saved_weight(ctx, saved[0]);
    const auto &u = saved[1], &b = saved[2], &d = saved[3], &wide_b = saved[4];
    const auto narrow = g.to(u.scalar_type());
    auto gu = nn::low_rank_project(narrow, (b.unsqueeze(1) * wide_b).t());
    at::Tensor gx, gb, gd, of_bias;
    if (ctx->needs_input_grad(2)) gb = (nn::low_rank_gradient(u * d, narrow).t() * wide_b).sum(1);
    if (ctx->needs_input_grad(3)) gd = (gu * u).sum(0, false, at::kFloat).to(d.scalar_type());
    if (ctx->needs_input_grad(0)) gx = weight.transposed_product(g);
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(4)) of_bias = nn::column_sums(g);
    return {gx, gu.mul_(d), gb, gd, of_bias, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Vera::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const {
  if (!nn::has_kernels(x) || (layer.is_training() && vera_dropout > 0)) return FactorMethod::output(layer, sizes, x, t);
  return nn::over_rows(x, [&](const at::Tensor& rows) {
    const auto u = (*projection_)(x, rows, t[2].narrow(1, 0, sizes.in));
    return VeraProduct::apply(rows, u, t[0], t[1], nn::optional(layer.bias), t[3].narrow(0, 0, sizes.out),
                              layer.handle());
  });
}

}  // namespace tessera::peft
