#include "models/bert_layers.h"

#include <cmath>

#include "models/bert_relative.h"
#include "nn/attention.h"

namespace tessera::models {

void collect_tensors(BertEmbeddingsInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.ids, &in.positions, &in.types, &in.head_input});
}
void collect_tensors(BertLayerInput& in, std::vector<at::Tensor*>& out) {
  out.push_back(&in.hidden);
}
void collect_tensors(BertOutputInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.hidden, &in.residual});
}

BertEmbeddings::BertEmbeddings(const BertConfig& c, at::ScalarType dtype)
    : class_name_(c.class_prefix + "Embeddings"), absolute_(c.positions == BertPositions::kAbsolute) {
  word_ = register_module("word_embeddings",
                          std::make_shared<nn::Embedding>(c.vocab_size, c.hidden_size, dtype, c.pad_token_id));
  // RoBERTa's padding has a position of its own, that of padding_idx.
  position_ = register_module(
      "position_embeddings",
      std::make_shared<nn::Embedding>(c.max_positions, c.hidden_size, dtype, c.roberta ? c.pad_token_id : -1));
  token_type_ = register_module("token_type_embeddings",
                                std::make_shared<nn::Embedding>(c.type_vocab_size, c.hidden_size, dtype));
  norm_ = register_module("LayerNorm", std::make_shared<nn::LayerNorm>(c.hidden_size, c.norm_eps, dtype));
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(c.hidden_dropout));
}

at::Tensor BertEmbeddings::forward_impl(BertEmbeddingsInput in) {
  if (in.head_input.defined()) return (*word_)(in.head_input);
  auto sum = (*word_)(in.ids) + (*token_type_)(in.types);
  if (absolute_) sum = sum + (*position_)(in.positions);
  return (*dropout_)((*norm_)(sum));
}

BertSelfAttention::BertSelfAttention(const BertConfig& c, at::ScalarType dtype)
    : class_name_(c.class_prefix + "SelfAttention"),
      num_heads_(c.num_heads),
      dropout_(c.attention_dropout),
      scale_(1.0 / std::sqrt(static_cast<double>(c.hidden_size / c.num_heads))),
      distance_of_keys_(c.positions == BertPositions::kRelativeKeyQuery) {
  const auto linear = [&](const char* name) {
    return register_module(name, std::make_shared<nn::Linear>(c.hidden_size, c.hidden_size, true, dtype));
  };
  query_ = linear("query");
  key_ = linear("key");
  value_ = linear("value");
  if (c.positions == BertPositions::kAbsolute) return;
  distances_ = register_module("distance_embedding", std::make_shared<nn::Embedding>(
                                                         2 * c.max_positions - 1, c.hidden_size / c.num_heads, dtype));
}

at::Tensor BertSelfAttention::forward_impl(BertLayerInput in) {
  nn::AttentionOptions options;
  options.num_heads = num_heads_;
  options.scale = scale_;
  options.dropout = is_training() ? dropout_ : 0.0;
  options.query_rows = options.key_rows = in.layout->rows;
  options.key_visible = in.layout->visible;
  const auto q = (*query_)(in.hidden), k = (*key_)(in.hidden), v = (*value_)(in.hidden);
  if (distances_) return relative_attention(q, k, v, *distances_, distance_of_keys_, options);
  return nn::attention(q, k, v, {}, options);
}

BertOutput::BertOutput(const BertConfig& c, std::int64_t in_features, std::string class_name, at::ScalarType dtype)
    : class_name_(std::move(class_name)) {
  dense_ = register_module("dense", std::make_shared<nn::Linear>(in_features, c.hidden_size, true, dtype));
  norm_ = register_module("LayerNorm", std::make_shared<nn::LayerNorm>(c.hidden_size, c.norm_eps, dtype));
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(c.hidden_dropout));
}

at::Tensor BertOutput::forward_impl(BertOutputInput in) {
  return (*norm_)(dropout_->add_to(in.residual, (*dense_)(in.hidden)));
}

BertAttention::BertAttention(const BertConfig& c, at::ScalarType dtype) : class_name_(c.class_prefix + "Attention") {
  self_ = register_module("self", std::make_shared<BertSelfAttention>(c, dtype));
  output_ =
      register_module("output", std::make_shared<BertOutput>(c, c.hidden_size, c.class_prefix + "SelfOutput", dtype));
}

at::Tensor BertAttention::forward_impl(BertLayerInput in) {
  const auto residual = in.hidden;
  return (*output_)({(*self_)(std::move(in)), residual});
}

BertDense::BertDense(std::int64_t in_features, std::int64_t out_features, nn::Activation activation,
                     std::string class_name, at::ScalarType dtype)
    : class_name_(std::move(class_name)), activation_(activation) {
  dense_ = register_module("dense", std::make_shared<nn::Linear>(in_features, out_features, true, dtype));
}

at::Tensor BertDense::forward_impl(at::Tensor x) {
  return nn::activate((*dense_)(x), activation_);
}

BertLayer::BertLayer(const BertConfig& c, at::ScalarType dtype) : class_name_(c.class_prefix + "Layer") {
  attention_ = register_module("attention", std::make_shared<BertAttention>(c, dtype));
  intermediate_ =
      register_module("intermediate", std::make_shared<BertDense>(c.hidden_size, c.intermediate_size, c.activation,
                                                                  c.class_prefix + "Intermediate", dtype));
  output_ =
      register_module("output", std::make_shared<BertOutput>(c, c.intermediate_size, c.class_prefix + "Output", dtype));
}

at::Tensor BertLayer::forward_impl(BertLayerInput in) {
  const auto attended = (*attention_)(std::move(in));
  return (*output_)({(*intermediate_)(attended), attended});
}

}  // namespace tessera::models
