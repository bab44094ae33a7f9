#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "models/batch_part.h"
#include "models/build_parts.h"
#include "models/decoder_layers.h"
#include "models/layer_place.h"
#include "models/mixture_of_experts.h"
#include "nn/ops/sums.h"

namespace tessera::models {

void collect_tensors(MlpOutput& o, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&o.hidden, &o.router_logits});
}
void collect_tensors(DecoderLayerInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.hidden, &in.prefix});
}

std::shared_ptr<nn::Layer> add_norm(torch::nn::Module& host, const families::DecoderConfig& c,
                                    const families::Blueprint& plan, const std::string& name, at::ScalarType dtype) {
  return add_part(host, plan, name, [&](const families::Blueprint& part) -> std::shared_ptr<nn::Layer> {
    const auto size = part.sizes[0];
    if (c.norm == families::NormKind::kLayer)
      return std::make_shared<nn::LayerNorm>(size, c.norm_eps, dtype, !part.parameters.empty());
    return std::make_shared<nn::RmsNorm>(size, c.norm_eps, c.classes.norm, dtype,
                                         c.norm == families::NormKind::kRmsOffset ? 1.0 : 0.0);
  });
}

std::shared_ptr<nn::Linear> add_projection(torch::nn::Module& host, const families::DecoderConfig& c,
                                           const families::Blueprint& plan, const std::string& name,
                                           at::ScalarType dtype) {
  const auto layout = c.transposed_weights ? nn::WeightLayout::kInOut : nn::WeightLayout::kOutIn;
  return add_part(host, plan, name, [&](const families::Blueprint& part) { return make_linear(part, dtype, layout); });
}

DecoderLayer::DecoderLayer(const families::DecoderConfig& c, const families::Blueprint& plan, std::int64_t layer,
                           at::ScalarType dtype)
    : class_name_(c.classes.layer),
      residual_(c.residual),
      residual_after_norm_(c.residual_after_norm),
      one_dropout_(c.one_dropout_for_both),
      branch_scale_(c.branch_scale) {
  attention_ = register_at(*this, c.names.attention, c.classes.attention,
                           std::make_shared<DecoderAttention>(c, plan.at(c.names.attention), layer, dtype));
  if (c.has_experts(layer)) {
    experts_ = register_module(c.names.mlp, std::make_shared<MixtureOfExperts>(c, plan.at(c.names.mlp), dtype));
  } else if (c.names.mlp.empty()) {
    mlp_ = std::make_shared<DecoderMlp>(c, plan, this, dtype);
  } else {
    mlp_ = register_module(c.names.mlp, std::make_shared<DecoderMlp>(c, plan.at(c.names.mlp), nullptr, dtype));
  }
  attention_norm_ = add_norm(*this, c, plan, c.names.attention_norm, dtype);
  after_attention_ = add_norm(*this, c, plan, c.names.after_attention, dtype);
  mlp_norm_ = add_norm(*this, c, plan, c.names.mlp_norm, dtype);
  after_mlp_ = add_norm(*this, c, plan, c.names.after_mlp, dtype);
  dropout_ = std::make_shared<nn::Dropout>(c.residual_dropout);
  if (c.residual_dropout > 0) register_module("dropout", dropout_);
  attention_dropout_ = c.mlp_alone_drops ? std::make_shared<nn::Dropout>(0.0) : dropout_;
}

MlpOutput DecoderLayer::mlp(const at::Tensor& x) {
  if (experts_) return (*experts_)(x);
  return {(*mlp_)(x), {}};
}

DecoderLayer::Readers DecoderLayer::readers(const at::Tensor& hidden, nn::Layer* norm) const {
  if (residual_after_norm_ && norm) {
    const auto [branch, residual] = nn::for_readers<2>((*norm)(hidden));
    return {branch, residual};
  }
  const auto [branch, residual] = nn::for_readers<2>(hidden);
  return {norm ? (*norm)(branch) : branch, residual};
}

MlpOutput DecoderLayer::sequential(const DecoderLayerInput& in) {
  const auto [for_attention, residual] = readers(in.hidden, attention_norm_.get());
  auto branch = (*attention_)({for_attention, in.layout, in.cache, in.prefix});
  if (after_attention_) branch = (*after_attention_)(branch);
  if (branch_scale_ != 1.0) branch = branch * branch_scale_;
  const auto hidden = attention_dropout_->add_to(residual, branch);
  const auto [for_mlp, residual_again] = readers(hidden, mlp_norm_.get());
  auto out = mlp(for_mlp);
  if (after_mlp_) out.hidden = (*after_mlp_)(out.hidden);
  if (branch_scale_ != 1.0) out.hidden = out.hidden * branch_scale_;
  out.hidden = dropout_->add_to(residual_again, out.hidden);
  return out;
}

MlpOutput DecoderLayer::parallel(const DecoderLayerInput& in) {
  const auto [for_norm, for_mlp, residual] = nn::for_readers<3>(in.hidden);
  const auto normed = nn::for_readers<2>((*attention_norm_)(for_norm));
  const auto branch = (*attention_)({normed[0], in.layout, in.cache, in.prefix});
  auto out = mlp(mlp_norm_ ? (*mlp_norm_)(for_mlp) : normed[1]);
  out.hidden = one_dropout_ ? dropout_->add_to(residual, nn::plus(branch, out.hidden))
                            : dropout_->add_to(attention_dropout_->add_to(residual, branch), out.hidden);
  return out;
}

MlpOutput DecoderLayer::norm_after(const DecoderLayerInput& in) {
  const auto [branch, residual] = nn::for_readers<2>(in.hidden);
  const auto hidden =
      (*attention_norm_)(dropout_->add_to(residual, (*attention_)({branch, in.layout, in.cache, in.prefix})));
  const auto [branch_again, residual_again] = nn::for_readers<2>(hidden);
  auto out = mlp(branch_again);
  out.hidden = (*mlp_norm_)(dropout_->add_to(residual_again, out.hidden));
  return out;
}

MlpOutput DecoderLayer::part_by_part(const DecoderLayerInput& in) {
  const auto& layout = *in.layout;
  const auto hidden = in.hidden.split_with_sizes(layout.part_tokens);
  std::vector<at::Tensor> outputs, router_logits;
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    const BatchPart part(i);
    auto out = compute({hidden[i], layout.parts[i], nullptr, {}, in.place});
    outputs.push_back(std::move(out.hidden));
    if (out.router_logits.defined()) router_logits.push_back(std::move(out.router_logits));
  }
  return {at::cat(outputs), router_logits.empty() ? at::Tensor() : at::cat(router_logits)};
}

thread_local int LayerPlace::now_ = -1;
thread_local int BatchPart::now_ = -1;

MlpOutput DecoderLayer::forward_impl(DecoderLayerInput in) {
  const LayerPlace place(in.place);
  return in.layout->parts.empty() ? compute(in) : part_by_part(in);
}

MlpOutput DecoderLayer::compute(const DecoderLayerInput& in) {
  switch (residual_) {
    case families::ResidualKind::kParallel:
      return parallel(in);
    case families::ResidualKind::kNormAfter:
      return norm_after(in);
    case families::ResidualKind::kSequential:
      break;
  }
  return sequential(in);
}

}  // namespace tessera::models
