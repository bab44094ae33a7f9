#include <ATen/ops/add.h>

#include "models/decoder_layers.h"
#include "models/mixture_of_experts.h"

namespace tessera::models {

void collect_tensors(MlpOutput& o, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&o.hidden, &o.router_logits});
}
void collect_tensors(DecoderLayerInput& in, std::vector<at::Tensor*>& out) {
  out.push_back(&in.hidden);
}

std::shared_ptr<nn::Layer> make_norm(const DecoderConfig& c, std::int64_t dim, at::ScalarType dtype) {
  if (c.norm == NormKind::kLayer) return std::make_shared<nn::LayerNorm>(dim, c.norm_eps, dtype, c.norm_affine);
  return std::make_shared<nn::RmsNorm>(dim, c.norm_eps, c.classes.norm, dtype,
                                       c.norm == NormKind::kRmsOffset ? 1.0 : 0.0);
}

std::shared_ptr<nn::Linear> make_projection(const DecoderConfig& c, std::int64_t in, std::int64_t out, bool bias,
                                            at::ScalarType dtype) {
  return std::make_shared<nn::Linear>(in, out, bias, dtype,
                                      c.transposed_weights ? nn::WeightLayout::kInOut : nn::WeightLayout::kOutIn);
}

DecoderLayer::DecoderLayer(const DecoderConfig& c, std::int64_t layer, at::ScalarType dtype)
    : class_name_(c.classes.layer),
      residual_(c.residual),
      residual_after_norm_(c.residual_after_norm),
      one_dropout_(c.one_dropout_for_both) {
  const auto norm = [&](const std::string& name) -> std::shared_ptr<nn::Layer> {
    return name.empty() ? nullptr : register_module(name, make_norm(c, c.hidden_size, dtype));
  };
  attention_ = register_module(c.names.attention, std::make_shared<DecoderAttention>(c, layer, dtype));
  if (c.mlp == MlpKind::kExperts) {
    experts_ = register_module(c.names.mlp, std::make_shared<MixtureOfExperts>(c, dtype));
  } else if (c.names.mlp.empty()) {
    mlp_ = std::make_shared<DecoderMlp>(c, this, dtype);
  } else {
    mlp_ = register_module(c.names.mlp, std::make_shared<DecoderMlp>(c, nullptr, dtype));
  }
  attention_norm_ = norm(c.names.attention_norm);
  after_attention_ = norm(c.names.after_attention);
  mlp_norm_ = norm(c.names.mlp_norm);
  after_mlp_ = norm(c.names.after_mlp);
  dropout_ = std::make_shared<nn::Dropout>(c.residual_dropout);
  if (c.residual_dropout > 0) register_module("dropout", dropout_);
}

MlpOutput DecoderLayer::mlp(const at::Tensor& x) {
  if (experts_) return (*experts_)(x);
  return {(*mlp_)(x), {}};
}

MlpOutput DecoderLayer::sequential(const DecoderLayerInput& in) {
  const auto normed = (*attention_norm_)(in.hidden);
  auto branch = (*attention_)({normed, in.layout, in.cache});
  if (after_attention_) branch = (*after_attention_)(branch);
  const auto hidden = dropout_->add_to(residual_after_norm_ ? normed : in.hidden, branch);
  const auto normed_again = (*mlp_norm_)(hidden);
  auto out = mlp(normed_again);
  if (after_mlp_) out.hidden = (*after_mlp_)(out.hidden);
  out.hidden = dropout_->add_to(residual_after_norm_ ? normed_again : hidden, out.hidden);
  return out;
}

MlpOutput DecoderLayer::parallel(const DecoderLayerInput& in) {
  const auto normed = (*attention_norm_)(in.hidden);
  const auto branch = (*attention_)({normed, in.layout, in.cache});
  auto out = mlp(mlp_norm_ ? (*mlp_norm_)(in.hidden) : normed);
  out.hidden = one_dropout_ ? dropout_->add_to(in.hidden, at::add(branch, out.hidden))
                            : dropout_->add_to(dropout_->add_to(in.hidden, branch), out.hidden);
  return out;
}

MlpOutput DecoderLayer::norm_after(const DecoderLayerInput& in) {
  const auto hidden = (*attention_norm_)(dropout_->add_to(in.hidden, (*attention_)({in.hidden, in.layout, in.cache})));
  auto out = mlp(hidden);
  out.hidden = (*mlp_norm_)(dropout_->add_to(hidden, out.hidden));
  return out;
}

MlpOutput DecoderLayer::forward_impl(DecoderLayerInput in) {
  switch (residual_) {
    case ResidualKind::kParallel:
      return parallel(in);
    case ResidualKind::kNormAfter:
      return norm_after(in);
    case ResidualKind::kSequential:
      break;
  }
  return sequential(in);
}

}  // namespace tessera::models
