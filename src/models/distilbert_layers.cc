#include "models/distilbert_layers.h"

#include <ATen/TensorOperators.h>

#include "models/build_parts.h"
#include "nn/ops/sums.h"

namespace tessera::models {

DistilBertAttention::DistilBertAttention(const families::BertConfig& c, const families::Blueprint& plan,
                                         at::ScalarType dtype)
    : BertSelfAttention(c, plan, "MultiHeadSelfAttention", dtype) {
  out_ = add_linear(*this, plan, "out_lin", dtype);
}

at::Tensor DistilBertAttention::forward_impl(BertLayerInput in) {
  return (*out_)(BertSelfAttention::forward_impl(std::move(in)));
}

DistilBertFeedForward::DistilBertFeedForward(const families::BertConfig& c, const families::Blueprint& plan,
                                             at::ScalarType dtype)
    : activation_(c.activation) {
  in_ = add_linear(*this, plan, "lin1", dtype);
  out_ = add_linear(*this, plan, "lin2", dtype);
}

at::Tensor DistilBertFeedForward::forward_impl(at::Tensor x) {
  return (*out_)(nn::activate((*in_)(x), activation_));
}

DistilBertLayer::DistilBertLayer(const families::BertConfig& c, const families::Blueprint& plan, at::ScalarType dtype) {
  attention_ = register_module("attention", std::make_shared<DistilBertAttention>(c, plan.at("attention"), dtype));
  attention_norm_ = add_norm(*this, c, plan, "sa_layer_norm", dtype);
  feed_forward_ = register_module("ffn", std::make_shared<DistilBertFeedForward>(c, plan.at("ffn"), dtype));
  output_norm_ = add_norm(*this, c, plan, "output_layer_norm", dtype);
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(c.hidden_dropout));
}

at::Tensor DistilBertLayer::forward_impl(BertLayerInput in) {
  const auto [branch, residual] = nn::for_readers<2>(in.hidden);
  in.hidden = branch;
  const auto attended = (*attention_norm_)(nn::plus(residual, (*attention_)(std::move(in))));
  const auto [branch_again, residual_again] = nn::for_readers<2>(attended);
  return (*output_norm_)(dropout_->add_to(residual_again, (*feed_forward_)(branch_again)));
}

}  // namespace tessera::models
