#include "models/bert_layers.h"

#include <ATen/TensorOperators.h>
#include <cmath>

#include "models/bert_relative.h"
#include "models/build_parts.h"
#include "models/deberta_layers.h"
#include "nn/ops/attention.h"
#include "nn/ops/sums.h"

namespace tessera::models {

void collect_tensors(BertEmbeddingsInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.ids, &in.positions, &in.types, &in.visible, &in.head_input});
}
void collect_tensors(BertLayerInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.hidden, &in.prefix, &in.positions});
}
void collect_tensors(BertOutputInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.hidden, &in.residual});
}

std::shared_ptr<nn::LayerNorm> add_norm(torch::nn::Module& host, const families::BertConfig& c,
                                        const families::Blueprint& plan, const std::string& name,
                                        at::ScalarType dtype) {
  return add_part(host, plan, name, [&](const families::Blueprint& part) {
    return std::make_shared<nn::LayerNorm>(part.sizes[0], c.norm_eps, dtype);
  });
}

BertEmbeddings::BertEmbeddings(const families::BertConfig& c, const families::Blueprint& plan, at::ScalarType dtype)
    : class_name_(c.part_prefix + "Embeddings"), absolute_(c.positions == families::BertPositions::kAbsolute) {
  word_ = add_embedding(*this, plan, "word_embeddings", dtype, c.padding_idx);
  // RoBERTa's padding has a position of its own, that of padding_idx.
  position_ = add_embedding(*this, plan, "position_embeddings", dtype, c.roberta() ? c.pad_token_id : -1);
  token_type_ = add_embedding(*this, plan, "token_type_embeddings", dtype);
  projection_ = add_linear(*this, plan, "embed_proj", dtype);
  norm_ = add_norm(*this, c, plan, "LayerNorm", dtype);
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(c.hidden_dropout));
}

at::Tensor BertEmbeddings::forward_impl(BertEmbeddingsInput in) {
  if (in.loss) return in.loss->of(in.head_input, word_->head_weight());
  if (in.head_input.defined()) return (*word_)(in.head_input);
  auto sum = (*word_)(in.ids);
  if (token_type_) sum = sum + (*token_type_)(in.types);
  if (absolute_) sum = sum + (*position_)(in.positions);
  if (projection_) sum = (*projection_)(sum);
  sum = (*norm_)(sum);
  if (in.visible.defined()) sum = sum * in.visible.unsqueeze(1).to(sum.scalar_type());
  return (*dropout_)(sum);
}

nn::AttentionOptions attention_options(const BertLayout& layout, double scale, double dropout) {
  nn::AttentionOptions options;
  options.scale = scale;
  options.dropout = dropout;
  options.query_rows = options.key_rows = layout.rows;
  options.key_visible = layout.visible;
  return options;
}

BertSelfAttention::BertSelfAttention(const families::BertConfig& c, const families::Blueprint& plan,
                                     std::string class_name, at::ScalarType dtype)
    : class_name_(std::move(class_name)),
      num_heads_(c.num_heads),
      dropout_(c.attention_dropout),
      scale_(1.0 / std::sqrt(static_cast<double>(c.hidden_size / c.num_heads))),
      distance_of_keys_(c.positions == families::BertPositions::kRelativeKeyQuery) {
  query_ = add_linear(*this, plan, c.names.query, dtype);
  key_ = add_linear(*this, plan, c.names.key, dtype);
  value_ = add_linear(*this, plan, c.names.value, dtype);
  distances_ = add_embedding(*this, plan, "distance_embedding", dtype);
}

at::Tensor BertSelfAttention::forward_impl(BertLayerInput in) {
  auto options = attention_options(*in.layout, scale_, is_training() ? dropout_ : 0.0);
  const auto [for_q, for_k, for_v] = nn::for_readers<3>(in.hidden);
  const auto q = nn::query_heads((*query_)(for_q), num_heads_);
  auto k = nn::key_heads((*key_)(for_k), num_heads_), v = nn::key_heads((*value_)(for_v), num_heads_);
  if (in.prefix.defined()) {
    const auto& prefix = in.layout->prefix;
    options.key_rows = prefix.rows;
    k = prefix.join(in.prefix.select(0, 0), k);
    v = prefix.join(in.prefix.select(0, 1), v);
  }
  if (distances_) return relative_attention(q, k, v, *distances_, distance_of_keys_, options);
  return nn::attention(q, k, v, options);
}

BertOutput::BertOutput(const families::BertConfig& c, const families::Blueprint& plan, std::string class_name,
                       at::ScalarType dtype)
    : class_name_(std::move(class_name)) {
  dense_ = add_linear(*this, plan, "dense", dtype);
  norm_ = add_norm(*this, c, plan, "LayerNorm", dtype);
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(c.hidden_dropout));
}

at::Tensor BertOutput::forward_impl(BertOutputInput in) {
  return (*norm_)(dropout_->add_to(in.residual, (*dense_)(in.hidden)));
}

BertAttention::BertAttention(const families::BertConfig& c, const families::Blueprint& plan, at::ScalarType dtype)
    : class_name_(c.class_prefix + "Attention") {
  std::shared_ptr<BertLayerBlock> self;
  if (c.is_deberta())
    self = std::make_shared<DisentangledSelfAttention>(c, plan.at("self"), dtype);
  else
    self = std::make_shared<BertSelfAttention>(c, plan.at("self"), c.class_prefix + "SelfAttention", dtype);
  self_ = register_module("self", self);
  output_ = register_module("output",
                            std::make_shared<BertOutput>(c, plan.at("output"), c.class_prefix + "SelfOutput", dtype));
}

at::Tensor BertAttention::forward_impl(BertLayerInput in) {
  const auto [branch, residual] = nn::for_readers<2>(in.hidden);
  in.hidden = branch;
  return (*output_)({(*self_)(std::move(in)), residual});
}

BertDense::BertDense(const families::Blueprint& plan, Activation activation, std::string class_name,
                     at::ScalarType dtype)
    : class_name_(std::move(class_name)), activation_(activation) {
  dense_ = add_linear(*this, plan, "dense", dtype);
}

at::Tensor BertDense::forward_impl(at::Tensor x) {
  return nn::activate((*dense_)(x), activation_);
}

BertLayer::BertLayer(const families::BertConfig& c, const families::Blueprint& plan, at::ScalarType dtype)
    : class_name_(c.class_prefix + "Layer") {
  attention_ = register_module("attention", std::make_shared<BertAttention>(c, plan.at("attention"), dtype));
  intermediate_ = register_module("intermediate", std::make_shared<BertDense>(plan.at("intermediate"), c.activation,
                                                                              c.class_prefix + "Intermediate", dtype));
  output_ =
      register_module("output", std::make_shared<BertOutput>(c, plan.at("output"), c.class_prefix + "Output", dtype));
}

at::Tensor BertLayer::forward_impl(BertLayerInput in) {
  const auto [branch, residual] = nn::for_readers<2>((*attention_)(std::move(in)));
  return (*output_)({(*intermediate_)(branch), residual});
}

}  // namespace tessera::models
