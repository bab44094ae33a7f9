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

nn::Linears DecoderMlp::all(const Experts& experts, std::shared_ptr<nn::Linear> DecoderMlp::* projection) {
  nn::Linears layers;
  for (const auto& expert : experts) layers.push_back(((*expert).*projection).get());
  return layers;
}

bool DecoderMlp::can_group(const at::Tensor& x, const Experts& experts) {
  if (x.is_cpu()) return false;
  for (const auto& expert : experts)
    if (expert->hooked() || expert->checkpointing()) return false;
  for (const auto projection : {&DecoderMlp::gate_, &DecoderMlp::up_, &DecoderMlp::down_})
    if (!nn::can_group(x, all(experts, projection))) return false;
  return true;
}

at::Tensor DecoderMlp::grouped(const at::Tensor& x, const Experts& experts, const nn::ExpertRows& rows) {
  const auto of = [&](const at::Tensor& input, auto projection) {
    return nn::grouped_linear(input, all(experts, projection), rows);
  };
  const auto [for_gate, for_up] = nn::for_readers<2>(x);
  const auto gate = of(for_gate, &DecoderMlp::gate_);
  return of(nn::gated(gate, of(for_up, &DecoderMlp::up_), experts.front()->activation_), &DecoderMlp::down_);
}

}  // namespace tessera::models
