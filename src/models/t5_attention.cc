#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "models/build_parts.h"
#include "models/relative_position.h"
#include "models/t5_layers.h"
#include "nn/ops/attention.h"
#include "nn/ops/sums.h"
#include "tensor/rng.h"

namespace tessera::models {

void collect_tensors(T5AttentionInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.hidden, &in.encoder_hidden, &in.position_bias, &in.prefix});
}
void collect_tensors(T5AttentionOutput& o, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&o.hidden, &o.position_bias});
}

T5Attention::T5Attention(const families::T5Config& config, const families::Blueprint& plan, T5Role role,
                         at::ScalarType dtype)
    : config_(config), role_(role) {
  q_ = add_linear(*this, plan, "q", dtype);
  k_ = add_linear(*this, plan, "k", dtype);
  v_ = add_linear(*this, plan, "v", dtype);
  o_ = add_linear(*this, plan, "o", dtype);
  relative_attention_bias_ = add_embedding(*this, plan, "relative_attention_bias", dtype);
}

at::Tensor T5Attention::position_bias(const T5Layout& layout) {
  const std::int64_t queries = layout.rows->longest();
  const auto buckets =
      relative_position_buckets(layout.past, queries, layout.past + queries, role_ == T5Role::kEncoderSelf,
                                config_.relative_buckets, config_.relative_max_distance);
  return (*relative_attention_bias_)(buckets).t().contiguous();
}

at::Tensor T5Attention::appended(at::Tensor& cached, std::int64_t& capacity, const at::Tensor& added,
                                 const T5Layout& layout) const {
  const std::int64_t rows = layout.rows->count(), fresh = layout.rows->longest(), need = layout.past + fresh;
  if (!cached.defined() || capacity < need) {
    const std::int64_t grown = std::max<std::int64_t>(16, 2 * need);
    auto larger = at::empty({rows * grown, added.size(1)}, added.options());
    if (layout.past > 0) {
      larger.view({rows, grown, -1})
          .narrow(1, 0, layout.past)
          .copy_(cached.view({rows, capacity, -1}).narrow(1, 0, layout.past));
    }
    cached = larger;
    capacity = grown;
  }
  cached.view({rows, capacity, -1}).narrow(1, layout.past, fresh).copy_(added.view({rows, fresh, -1}));
  return cached;
}

T5AttentionOutput T5Attention::forward_impl(T5AttentionInput in) {
  const auto& layout = *in.layout;
  const bool cross = role_ == T5Role::kCross;
  nn::AttentionOptions options;
  options.causal = role_ == T5Role::kDecoderSelf;
  options.dropout = is_training() ? config_.dropout : 0.0;
  options.query_rows = layout.rows;
  options.key_rows = cross ? layout.encoder_rows : layout.rows;
  options.key_visible = cross ? layout.encoder_visible : layout.visible;
  if (relative_attention_bias_ && !in.position_bias.defined()) in.position_bias = position_bias(layout);

  const auto for_qkv = nn::for_readers(in.hidden, cross ? 1 : 3);
  const auto q = (*q_)(for_qkv[0]);
  at::Tensor k, v;
  if (cross && in.cache && in.cache->keys.defined()) {
    k = in.cache->keys;
    v = in.cache->values;
  } else {
    const auto for_kv = cross ? nn::for_readers(in.encoder_hidden, 2) : std::vector{for_qkv[1], for_qkv[2]};
    const tensor::RowScope rows(cross ? layout.encoder_keys : tensor::random_state().rows);
    k = (*k_)(for_kv[0]);
    v = (*v_)(for_kv[1]);
    if (in.cache && cross) {
      in.cache->keys = k;
      in.cache->values = v;
    } else if (in.cache) {
      std::int64_t capacity = in.cache->capacity;
      k = appended(in.cache->keys, capacity, k, layout);
      v = appended(in.cache->values, in.cache->capacity, v, layout);
      options.key_rows = std::make_shared<nn::SequenceRows>(
          nn::SequenceRows::uniform(layout.rows->count(), layout.past + layout.rows->longest(), in.cache->capacity));
    } else if (in.prefix.defined()) {
      const std::int64_t count = layout.rows->count(), keys = layout.past + layout.rows->longest();
      const auto in_front = [&](const at::Tensor& prefix, const at::Tensor& own) {
        const auto all = prefix.to(own.scalar_type()).flatten(1).expand({count, layout.past, own.size(1)});
        return at::cat({all, own.view({count, layout.rows->longest(), own.size(1)})}, 1).flatten(0, 1);
      };
      k = in_front(in.prefix.select(0, 0), k);
      v = in_front(in.prefix.select(0, 1), v);
      options.key_rows = std::make_shared<nn::SequenceRows>(nn::SequenceRows::uniform(count, keys, keys));
    }
  }
  const auto heads = config_.num_heads;
  const auto attended = nn::attention(nn::query_heads(q, heads), nn::key_heads(k, heads), nn::key_heads(v, heads),
                                      options, {.bias = in.position_bias});
  return {(*o_)(attended), in.position_bias};
}

T5LayerAttention::T5LayerAttention(const families::T5Config& config, const families::Blueprint& plan, T5Role role,
                                   at::ScalarType dtype)
    : class_name_(config.class_prefix + (role == T5Role::kCross ? "LayerCrossAttention" : "LayerSelfAttention")) {
  const char* name = role == T5Role::kCross ? "EncDecAttention" : "SelfAttention";
  attention_ = register_module(name, std::make_shared<T5Attention>(config, plan.at(name), role, dtype));
  layer_norm_ = add_norm(*this, config, plan, "layer_norm", dtype);
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(config.dropout));
}

T5AttentionOutput T5LayerAttention::forward_impl(T5AttentionInput in) {
  const auto [branch, residual] = nn::for_readers<2>(in.hidden);
  in.hidden = (*layer_norm_)(branch);
  auto out = (*attention_)(std::move(in));
  return {dropout_->add_to(residual, out.hidden), out.position_bias};
}

}  // namespace tessera::models
