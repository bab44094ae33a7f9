#include "models/decoder_layers.h"

namespace tessera::models {

DecoderMlp::DecoderMlp(const DecoderConfig& c, torch::nn::Module* host, at::ScalarType dtype)
    : class_name_(c.classes.mlp), activation_(c.activation), fused_(c.mlp == MlpKind::kGatedFused) {
  torch::nn::Module& place = host ? *host : *this;
  const auto projection = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    return place.register_module(name, make_projection(c, in, out, c.mlp_bias, dtype));
  };
  if (c.mlp == MlpKind::kGated) gate_ = projection(c.names.gate, c.hidden_size, c.intermediate_size);
  if (fused_) {
    gate_ = projection(c.names.gate, c.hidden_size, 2 * c.intermediate_size);
  } else {
    up_ = projection(c.names.up, c.hidden_size, c.intermediate_size);
  }
  down_ = projection(c.names.down, c.intermediate_size, c.hidden_size);
}

at::Tensor DecoderMlp::forward_impl(at::Tensor x) {
  if (fused_) {
    const auto both = (*gate_)(x);
    const auto halves = both.split(both.size(1) / 2, 1);
    return (*down_)(nn::gated(halves[0], halves[1], activation_));
  }
  if (gate_) {
    const auto gate = (*gate_)(x);
    return (*down_)(nn::gated(gate, (*up_)(x), activation_));
  }
  return (*down_)(nn::activate((*up_)(x), activation_));
}

}  // namespace tessera::models
