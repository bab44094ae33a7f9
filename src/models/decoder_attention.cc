#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/stack.h>

#include "models/build_parts.h"
#include "models/decoder_layers.h"
#include "nn/ops/attention.h"
#include "nn/ops/layer_norm.h"
#include "nn/ops/remade.h"
#include "nn/ops/sums.h"
#include "tessera/nn/init.h"

namespace tessera::models {

namespace {

/// Norms without bias, one for each head (StableLM): computed as one, whose result is scaled.
class NormPerHead : public nn::Layer {
 public:
  NormPerHead(const families::DecoderConfig& c, const families::Blueprint& plan, at::ScalarType dtype)
      : eps_(c.norm_eps) {
    auto norms = register_module("norms", std::make_shared<nn::Container>("ModuleList"));
    for (const auto& part : plan.at("norms").parts) {
      auto norm = norms->register_module(part.name, std::make_shared<nn::Container>(c.classes.norm));
      weights_.push_back(norm->register_parameter("weight", nn::make_parameter({part.sizes[0]}, dtype)));
    }
  }
  std::string class_name() const override { return "StableLmLayerNormPerHead"; }

 protected:
  /// x: T, heads in any number of dimensions, D. In float32, which is not kept.
  at::Tensor forward_impl(at::Tensor x) override {
    return nn::remade(x, {at::stack(weights_)}, [eps = eps_](const at::Tensor& heads, const auto& weights) {
      auto sizes = heads.sizes().vec();
      sizes[0] = 1;
      const auto normed = nn::layer_norm(heads.to(at::kFloat), {}, {}, eps);
      return (normed * weights[0].view(sizes)).to(heads.scalar_type());
    });
  }

 private:
  double eps_;
  std::vector<at::Tensor> weights_;
};

std::shared_ptr<nn::Layer> add_norm_of_heads(torch::nn::Module& host, const families::DecoderConfig& c,
                                             const families::Blueprint& plan, const std::string& name,
                                             at::ScalarType dtype) {
  if (c.qk_norm != families::QkNorm::kOwnHead) return add_norm(host, c, plan, name, dtype);
  return add_part(host, plan, name, [&](const families::Blueprint& part) -> std::shared_ptr<nn::Layer> {
    return std::make_shared<NormPerHead>(c, part, dtype);
  });
}

}  // namespace

void collect_tensors(AttentionInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.hidden, &in.prefix});
}

DecoderAttention::DecoderAttention(const families::DecoderConfig& c, const families::Blueprint& plan,
                                   std::int64_t layer, at::ScalarType dtype)
    : class_name_(c.classes.attention),
      layout_(c.qkv),
      rotates_(c.position == families::PositionKind::kRotary && (c.rotary_layers.empty() || c.rotary_layers[layer])),
      kv_heads_(c.num_kv_heads),
      groups_(c.num_heads / c.num_kv_heads),
      head_dim_(c.head_dim),
      window_(c.attention_window[layer]),
      scale_(c.attention_scale[layer]),
      softcap_(c.attention_softcap),
      clip_(c.clip_qkv),
      dropout_(c.attention_dropout),
      bias_factor_(c.linear_bias_factor),
      bias_in_bfloat16_(c.linear_bias_in_bfloat16),
      blind_query_sees_past_(c.blind_query_sees_past),
      norms_all_heads_(c.qk_norm == families::QkNorm::kAll) {
  const auto projection = [&](const std::string& name) { return add_projection(*this, c, plan, name, dtype); };
  if (layout_ == families::QkvLayout::kSeparate) {
    q_ = projection(c.names.q);
    k_ = projection(c.names.k);
    v_ = projection(c.names.v);
  } else {
    qkv_ = projection(c.names.qkv);
  }
  o_ = projection(c.names.o);
  q_norm_ = add_norm_of_heads(*this, c, plan, c.names.q_norm, dtype);
  k_norm_ = add_norm_of_heads(*this, c, plan, c.names.k_norm, dtype);
}

DecoderAttention::Heads DecoderAttention::project(const at::Tensor& hidden) {
  const std::int64_t tokens = hidden.size(0), d = head_dim_;
  if (layout_ == families::QkvLayout::kSeparate) {
    const auto [for_q, for_k, for_v] = nn::for_readers<3>(hidden);
    return {(*q_)(for_q).view({tokens, kv_heads_, groups_, d}), (*k_)(for_k).view({tokens, kv_heads_, d}),
            (*v_)(for_v).view({tokens, kv_heads_, d})};
  }
  const auto all = (*qkv_)(hidden);
  if (layout_ == families::QkvLayout::kConcatenated) {
    const std::int64_t keys = kv_heads_ * d;
    const auto parts = all.split_with_sizes({keys * groups_, keys, keys}, 1);
    return {parts[0].view({tokens, kv_heads_, groups_, d}), parts[1].view({tokens, kv_heads_, d}),
            parts[2].view({tokens, kv_heads_, d})};
  }
  const auto parts = all.view({tokens, kv_heads_, groups_ + 2, d}).split_with_sizes({groups_, 1, 1}, 2);
  return {parts[0], parts[1].squeeze(2), parts[2].squeeze(2)};
}

void DecoderAttention::Heads::repeat_keys(std::int64_t heads) {
  if (heads == k.size(1)) return;
  q = q.flatten(1, 2).unsqueeze(2);
  const auto groups = heads / k.size(1);
  const auto repeated = [&](const at::Tensor& x) { return x.unsqueeze(2).expand({-1, -1, groups, -1}).flatten(1, 2); };
  k = repeated(k);
  v = repeated(v);
}

void DecoderAttention::append(KeyValueCache& cache, Heads& heads, const DecoderLayout& layout) const {
  const auto put = [&](at::Tensor& store, at::Tensor& fresh) {
    const auto count = fresh.size(1);
    if (!store.defined()) store = at::empty({layout.cache_rows, count * head_dim_}, fresh.options());
    store = store.to(fresh.scalar_type());  // a prefix may have begun it in its own dtype
    store.index_copy_(0, layout.cache_index, fresh.reshape({fresh.size(0), -1}));
    fresh = store.view({-1, count, head_dim_});
  };
  if (cache.keys.defined()) heads.repeat_keys(cache.keys.size(1) / head_dim_);
  put(cache.keys, heads.k);
  put(cache.values, heads.v);
}

at::Tensor DecoderAttention::forward_impl(AttentionInput in) {
  const auto& layout = *in.layout;
  auto heads = project(in.hidden);
  if (q_norm_) {
    const auto normed = [&](nn::Layer& norm, const at::Tensor& x) {
      return norms_all_heads_ ? norm(x.flatten(1)).view(x.sizes()) : norm(x);
    };
    heads.q = normed(*q_norm_, heads.q);
    heads.k = normed(*k_norm_, heads.k);
  }
  if (clip_ > 0)
    for (at::Tensor* x : {&heads.q, &heads.k, &heads.v}) *x = at::clamp(*x, -clip_, clip_);
  if (rotates_)
    std::tie(heads.q, heads.k) = nn::rotary(heads.q, heads.k, window_ > 0 ? layout.window_rotary : layout.rotary);
  if (in.cache) append(*in.cache, heads, layout);
  if (in.prefix.defined()) {
    heads.repeat_keys(in.prefix.size(2));
    heads.k = layout.prefix.join(in.prefix.select(0, 0), heads.k);
    heads.v = layout.prefix.join(in.prefix.select(0, 1), heads.v);
  }
  nn::AttentionOptions options;
  options.causal = true;
  options.scale = scale_;
  options.window = window_;
  options.softcap = softcap_;
  options.dropout = is_training() ? dropout_ : 0.0;
  options.key_visible = layout.visible;
  options.slopes = layout.slopes;
  options.bias_scale = bias_factor_;
  options.bias_in_bfloat16 = bias_in_bfloat16_;
  options.blind_query_sees_past = blind_query_sees_past_;
  options.key_position = layout.key_position;
  options.query_rows = layout.rows;
  options.key_rows = layout.key_rows;
  return (*o_)(nn::attention(heads.q, heads.k, heads.v, options));
}

}  // namespace tessera::models
