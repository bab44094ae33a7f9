#include "models/decoder_layers.h"
#include "nn/ops/sums.h"

namespace tessera::models {

DecoderMlp::DecoderMlp(const families::DecoderConfig& c, const families::Blueprint& plan, torch::nn::Module* host,
                       at::ScalarType dtype)
    : class_name_(c.classes.mlp), activation_(c.activation), fused_(c.mlp == families::MlpKind::kGatedFused) {
  torch::nn::Module& place = host ? *host : *this;
  gate_ = add_projection(place, c, plan, c.names.gate, dtype);
  up_ = add_projection(place, c, plan, c.names.up, dtype);
  down_ = add_projection(place, c, plan, c.names.down, dtype);
}

at::Tensor DecoderMlp::forward_impl(at::Tensor x) {
  if (fused_) {
    const auto both = (*gate_)(x);
    const auto halves = both.split(both.size(1) / 2, 1);
    return (*down_)(nn::gated(halves[0], halves[1], activation_));
  }
  if (gate_) {
    const auto [for_gate, for_up] = nn::for_readers<2>(x);
    const auto gate = (*gate_)(for_gate);
    return (*down_)(nn::gated(gate, (*up_)(for_up), activation_));
  }
  return (*down_)(nn::activate((*up_)(x), activation_));
}

}  // namespace tessera::models
