#include "models/t5_stack.h"

#include "nn/layers/container.h"

namespace tessera::models {

void collect_tensors(T5BlockInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.hidden, &in.encoder_hidden, &in.position_bias, &in.prefix});
}
void collect_tensors(T5BlockOutput& o, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&o.hidden, &o.position_bias});
}
void collect_tensors(T5StackInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.embedded, &in.encoder_hidden, &in.prefix});
}
void collect_tensors(T5StackOutput& o, std::vector<at::Tensor*>& out) {
  out.push_back(&o.hidden);
  for (auto& t : o.states) out.push_back(&t);
}

T5Block::T5Block(const families::T5Config& config, const families::Blueprint& plan, bool decoder, at::ScalarType dtype)
    : class_name_(config.class_prefix + "Block"), bias_in_every_layer_(config.bias_in_every_layer) {
  auto layer = std::make_shared<nn::Container>("ModuleList");
  const auto& parts = plan.at("layer").parts;
  const auto attention = [&](const families::Blueprint& part, T5Role role) {
    return layer->register_module(part.name, std::make_shared<T5LayerAttention>(config, part, role, dtype));
  };
  self_ = attention(parts.front(), decoder ? T5Role::kDecoderSelf : T5Role::kEncoderSelf);
  if (decoder) cross_ = attention(parts[1], T5Role::kCross);
  feed_forward_ = layer->register_module(parts.back().name, std::make_shared<T5LayerFF>(config, parts.back(), dtype));
  register_module("layer", layer);
}

T5BlockOutput T5Block::forward_impl(T5BlockInput in) {
  auto self = (*self_)({in.hidden,
                        {},
                        bias_in_every_layer_ ? at::Tensor() : in.position_bias,
                        in.layout,
                        in.cache ? &in.cache->self : nullptr,
                        in.prefix});
  auto hidden = self.hidden;
  if (cross_) {
    hidden = (*cross_)({hidden, in.encoder_hidden, {}, in.layout, in.cache ? &in.cache->cross : nullptr}).hidden;
  }
  return {(*feed_forward_)(hidden), self.position_bias};
}

T5Stack::T5Stack(const families::T5Config& config, const families::Blueprint& plan, bool decoder, at::ScalarType dtype)
    : class_name_(config.class_prefix + "Stack") {
  auto list = std::make_shared<nn::Container>("ModuleList");
  for (const auto& part : plan.at("block").parts)
    blocks_.push_back(list->register_module(part.name, std::make_shared<T5Block>(config, part, decoder, dtype)));
  register_module("block", list);
  final_layer_norm_ = add_norm(*this, config, plan, "final_layer_norm", dtype);
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(config.dropout));
}

// Upstream gives a layer four slices and doubles the prefix for that; two of them are the self-attention's.
at::Tensor prefix_of_layer(const at::Tensor& prefix, std::size_t layer) {
  if (!prefix.defined()) return {};
  const auto slices = prefix.size(0);
  return prefix.narrow(0, 4 * static_cast<std::int64_t>(layer) % slices, 2);
}

T5StackOutput T5Stack::forward_impl(T5StackInput in) {
  T5StackOutput out;
  T5BlockOutput state{(*dropout_)(in.embedded), {}};
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (in.want_hidden) out.states.push_back(state.hidden);
    state = (*blocks_[i])({state.hidden, in.encoder_hidden, state.position_bias, in.layout,
                           in.caches ? &(*in.caches)[i] : nullptr, prefix_of_layer(in.prefix, i)});
  }
  out.hidden = (*dropout_)((*final_layer_norm_)(state.hidden));
  if (in.want_hidden) out.states.push_back(out.hidden);
  return out;
}

}  // namespace tessera::models
