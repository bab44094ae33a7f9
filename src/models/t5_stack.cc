#include "models/t5_stack.h"

#include "nn/container.h"

namespace tessera::models {

void collect_tensors(T5BlockInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.hidden, &in.encoder_hidden, &in.position_bias});
}
void collect_tensors(T5BlockOutput& o, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&o.hidden, &o.position_bias});
}
void collect_tensors(T5StackInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.embedded, &in.encoder_hidden});
}
void collect_tensors(T5StackOutput& o, std::vector<at::Tensor*>& out) {
  out.push_back(&o.hidden);
  for (auto& t : o.states) out.push_back(&t);
}

T5Block::T5Block(const T5Config& config, bool decoder, bool has_bias, at::ScalarType dtype)
    : class_name_(config.class_prefix + "Block"), bias_in_every_layer_(config.bias_in_every_layer) {
  auto layer = std::make_shared<nn::Container>("ModuleList");
  self_ =
      layer->register_module("0", std::make_shared<T5LayerAttention>(
                                      config, decoder ? T5Role::kDecoderSelf : T5Role::kEncoderSelf, has_bias, dtype));
  if (decoder)
    cross_ = layer->register_module("1", std::make_shared<T5LayerAttention>(config, T5Role::kCross, false, dtype));
  feed_forward_ = layer->register_module(decoder ? "2" : "1", std::make_shared<T5LayerFF>(config, dtype));
  register_module("layer", layer);
}

T5BlockOutput T5Block::forward_impl(T5BlockInput in) {
  auto self = (*self_)({in.hidden,
                        {},
                        bias_in_every_layer_ ? at::Tensor() : in.position_bias,
                        in.layout,
                        in.cache ? &in.cache->self : nullptr});
  auto hidden = self.hidden;
  if (cross_) {
    hidden = (*cross_)({hidden, in.encoder_hidden, {}, in.layout, in.cache ? &in.cache->cross : nullptr}).hidden;
  }
  return {(*feed_forward_)(hidden), self.position_bias};
}

T5Stack::T5Stack(const T5Config& config, bool decoder, at::ScalarType dtype)
    : class_name_(config.class_prefix + "Stack") {
  auto list = std::make_shared<nn::Container>("ModuleList");
  const std::int64_t count = decoder ? config.num_decoder_layers : config.num_layers;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool has_bias = i == 0 || config.bias_in_every_layer;
    blocks_.push_back(
        list->register_module(std::to_string(i), std::make_shared<T5Block>(config, decoder, has_bias, dtype)));
  }
  register_module("block", list);
  final_layer_norm_ = register_module(
      "final_layer_norm",
      std::make_shared<nn::RmsNorm>(config.d_model, config.norm_eps, config.class_prefix + "LayerNorm", dtype));
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(config.dropout));
}

T5StackOutput T5Stack::forward_impl(T5StackInput in) {
  T5StackOutput out;
  T5BlockOutput state{(*dropout_)(in.embedded), {}};
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (in.want_hidden) out.states.push_back(state.hidden);
    state = (*blocks_[i])(
        {state.hidden, in.encoder_hidden, state.position_bias, in.layout, in.caches ? &(*in.caches)[i] : nullptr});
  }
  out.hidden = (*dropout_)((*final_layer_norm_)(state.hidden));
  if (in.want_hidden) out.states.push_back(out.hidden);
  return out;
}

}  // namespace tessera::models
