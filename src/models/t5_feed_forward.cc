#include <ATen/ops/mul.h>

#include "models/t5_layers.h"
#include "nn/dropout_ops.h"
#include "nn/remake.h"

namespace tessera::models {

T5Dense::T5Dense(const T5Config& config, at::ScalarType dtype)
    : activation_(config.activation),
      class_name_(config.class_prefix + (config.gated ? "DenseGatedActDense" : "DenseActDense")) {
  const auto linear = [&](const char* name, std::int64_t in, std::int64_t out) {
    return register_module(name, std::make_shared<nn::Linear>(in, out, false, dtype));
  };
  wi_ = linear(config.gated ? "wi_0" : "wi", config.d_model, config.d_ff);
  if (config.gated) wi_1_ = linear("wi_1", config.d_model, config.d_ff);
  wo_ = linear("wo", config.d_ff, config.d_model);
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(config.dropout));
}

at::Tensor T5Dense::forward_impl(at::Tensor x) {
  auto h = (*wi_)(x);
  if (!wi_1_ && activation_ == nn::Activation::kRelu) return (*wo_)(nn::relu_dropout(h, dropout_->active_p()));
  h = nn::activate(h, activation_);
  if (wi_1_) h = nn::remakable({h, (*wi_1_)(x)}, [](const auto& halves) { return at::mul(halves[0], halves[1]); });
  return (*wo_)((*dropout_)(h));
}

T5LayerFF::T5LayerFF(const T5Config& config, at::ScalarType dtype) : class_name_(config.class_prefix + "LayerFF") {
  dense_ = register_module("DenseReluDense", std::make_shared<T5Dense>(config, dtype));
  layer_norm_ = register_module("layer_norm", std::make_shared<nn::RmsNorm>(config.d_model, config.norm_eps,
                                                                            config.class_prefix + "LayerNorm", dtype));
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(config.dropout));
}

at::Tensor T5LayerFF::forward_impl(at::Tensor x) {
  return dropout_->add_to(x, (*dense_)((*layer_norm_)(x)));
}

}  // namespace tessera::models
