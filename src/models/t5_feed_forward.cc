#include "models/build_parts.h"
#include "models/t5_layers.h"
#include "nn/layers/activation.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/sums.h"

namespace tessera::models {

std::shared_ptr<nn::RmsNorm> add_norm(torch::nn::Module& host, const families::T5Config& config,
                                      const families::Blueprint& plan, const std::string& name, at::ScalarType dtype) {
  return add_part(host, plan, name, [&](const families::Blueprint& part) {
    return std::make_shared<nn::RmsNorm>(part.sizes[0], config.norm_eps, config.class_prefix + "LayerNorm", dtype);
  });
}

T5Dense::T5Dense(const families::T5Config& config, const families::Blueprint& plan, at::ScalarType dtype)
    : activation_(config.activation),
      class_name_(config.class_prefix + (config.gated ? "DenseGatedActDense" : "DenseActDense")) {
  wi_ = add_linear(*this, plan, config.gated ? "wi_0" : "wi", dtype);
  wi_1_ = add_linear(*this, plan, "wi_1", dtype);
  wo_ = add_linear(*this, plan, "wo", dtype);
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(config.dropout));
}

at::Tensor T5Dense::forward_impl(at::Tensor x) {
  if (wi_1_) {
    const auto [for_gate, for_up] = nn::for_readers<2>(x);
    const auto gate = (*wi_)(for_gate);
    return (*wo_)((*dropout_)(nn::gated(gate, (*wi_1_)(for_up), activation_)));
  }
  const auto h = (*wi_)(x);
  if (activation_ == Activation::kRelu) return (*wo_)(nn::relu_dropout(h, dropout_->active_p()));
  return (*wo_)((*dropout_)(nn::activate(h, activation_)));
}

T5LayerFF::T5LayerFF(const families::T5Config& config, const families::Blueprint& plan, at::ScalarType dtype)
    : class_name_(config.class_prefix + "LayerFF") {
  dense_ = register_module("DenseReluDense", std::make_shared<T5Dense>(config, plan.at("DenseReluDense"), dtype));
  layer_norm_ = add_norm(*this, config, plan, "layer_norm", dtype);
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(config.dropout));
}

at::Tensor T5LayerFF::forward_impl(at::Tensor x) {
  const auto [branch, residual] = nn::for_readers<2>(x);
  return dropout_->add_to(residual, (*dense_)((*layer_norm_)(branch)));
}

}  // namespace tessera::models
