#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "nn/composite/composite.h"
#include "nn/ops/dropout_mask.h"
#include "tensor/device.h"

namespace tessera::nn::composite {
namespace {

// Shapes: M queries and N keys of one sequence.

/// One sequence: where its queries and keys begin in the tensors, and how many there are.
struct Extent {
  std::int64_t query, m, key, n;
};

template <class Options>
Extent extent_of(const Options& o, std::int64_t sequence) {
  return {o.query_rows->begin[sequence], o.query_rows->length[sequence], o.key_rows->begin[sequence],
          o.key_rows->length[sequence]};
}

/// [M, N] bool: the keys that come no later than a query, or no earlier than `window` keys before it either.
at::Tensor keys_before(const Extent& e, std::int64_t window, const at::Tensor& like) {
  const auto places = like.options().dtype(at::kLong);
  const auto query = (at::arange(e.m, places) + (e.n - e.m)).unsqueeze(1), key = at::arange(e.n, places).unsqueeze(0);
  const auto before = key.le(query);
  return window > 0 ? before.logical_and(key.gt(query - window)) : before;
}

/// Scores with the smallest number added where `counts` is false: such keys get probability 0, unless no key counts;
/// then all get the same.
at::Tensor without_hidden(const at::Tensor& scores, const at::Tensor& counts) {
  return scores + counts.logical_not().to(at::kFloat) * -std::numeric_limits<float>::max();
}

/// softmax of the scores [..., M, N] with the mask of the CPU's kernels; `...`: the heads.
at::Tensor probabilities(const at::Tensor& scores, at::ScalarType dtype, const Extent& e, const DropoutMask& mask) {
  const auto p = at::softmax(scores, -1).to(dtype);
  if (!mask.drops()) return p;
  const auto factors = at::ones(p.sizes(), at::TensorOptions().dtype(at::kFloat));
  auto* row = factors.mutable_data_ptr<float>();
  const std::int64_t rows = e.n == 0 ? 0 : p.numel() / e.n;
  for (std::int64_t r = 0; r < rows; ++r, row += e.n)
    kernels::dropout(row, row, e.n, head_offset(r / e.m), mask.row(e.query + r % e.m));
  return (p.to(at::kFloat) * tensor::beside(factors, p)).to(dtype);
}

/// The sequences' results, each [M, D], at their queries' places in [tokens, D].
at::Tensor placed(const std::vector<at::Tensor>& results, const SequenceRows& rows, std::int64_t tokens) {
  std::vector<std::int64_t> places;
  bool in_order = true;
  for (std::int64_t s = 0; s < rows.count(); ++s) {
    in_order = in_order && rows.begin[s] == static_cast<std::int64_t>(places.size());
    for (std::int64_t i = 0; i < rows.length[s]; ++i) places.push_back(rows.begin[s] + i);
  }
  const auto all = at::cat(results);
  if (in_order && all.size(0) == tokens) return all;
  return at::zeros({tokens, all.size(1)}, all.options())
      .index_copy(0, tensor::beside(at::tensor(places, at::TensorOptions().dtype(at::kLong)), all), all);
}

/// Scores [KV, G, M, N] in float32 from the products q k^T.
at::Tensor causal_scores(const at::Tensor& products, const Extent& e, const CausalAttentionOptions& o) {
  auto scores = products.to(at::kFloat);
  scores = o.softcap > 0 ? at::tanh(scores * (o.scale / o.softcap)) * o.softcap : scores * o.scale;
  if (o.slopes.defined()) {
    const auto rounded = [&](const at::Tensor& t) {
      return o.bias_in_bfloat16 ? t.to(at::kBFloat16).to(at::kFloat) : t;
    };
    const auto slopes = rounded(o.slopes).view({products.size(0), products.size(1), 1, 1});
    scores = scores + rounded(slopes * rounded(o.key_position.narrow(0, e.key, e.n))) * o.bias_scale;
  }
  const auto before = keys_before(e, o.window, products);
  const auto counts = o.key_visible.defined() ? before.logical_and(o.key_visible.narrow(0, e.key, e.n).ne(0)) : before;
  if (!o.blind_query_sees_past) return without_hidden(scores, counts);
  return without_hidden(scores, counts.logical_or(before.logical_not()))
      .masked_fill(before.logical_not(), -std::numeric_limits<float>::infinity());
}

/// Nothing but the order of keys shapes the scores.
bool is_plain(const CausalAttentionOptions& o, const DropoutMask& mask) {
  return o.window == 0 && o.softcap == 0 && !o.key_visible.defined() && !o.slopes.defined() && !mask.drops();
}

/// q: [B, M, KV, G, D]; k, v: [B, M, KV, D]. libtorch's own operator, which stores no scores where the device has such
/// kernels. [B * M, KV * G * D]
at::Tensor plain_causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  const auto heads_first = [](const at::Tensor& x) { return x.transpose(1, 2); };
  return heads_first(at::scaled_dot_product_attention(heads_first(q.flatten(2, 3)), heads_first(k), heads_first(v),
                                                      /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true, scale,
                                                      /*enable_gqa=*/q.size(3) > 1))
      .reshape({q.size(0) * q.size(1), -1});
}

/// All sequences are equally long, follow each other in q, k and v, and have as many queries as keys.
bool is_one_batch(const CausalAttentionOptions& o, std::int64_t tokens) {
  const auto count = o.query_rows->count();
  if (count == 0 || tokens % count != 0) return false;
  const auto length = tokens / count;
  for (std::int64_t s = 0; s < count; ++s) {
    const auto e = extent_of(o, s);
    if (e.m != length || e.n != length || e.query != s * length || e.key != s * length) return false;
  }
  return true;
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                     const AttentionOptions& o) {
  const DropoutMask mask(o.dropout, q.size(0));
  std::vector<at::Tensor> results;
  for (std::int64_t s = 0; s < o.query_rows->count(); ++s) {
    const auto e = extent_of(o, s);
    const auto heads = [&](const at::Tensor& x, std::int64_t begin, std::int64_t length) {
      return x.narrow(0, begin, length).view({length, o.num_heads, -1}).transpose(0, 1);
    };
    auto products = at::matmul(heads(q, e.query, e.m), heads(k, e.key, e.n).transpose(1, 2));  // [H, M, N]
    if (o.scale != 1.0) products = products * o.scale;
    auto scores = products.to(at::kFloat);
    if (bias.defined()) scores = scores + bias.to(at::kFloat).narrow(1, 0, e.m).narrow(2, 0, e.n);
    auto counts = o.causal ? keys_before(e, 0, q) : at::Tensor();
    if (o.key_visible.defined()) {
      const auto visible = o.key_visible.narrow(0, e.key, e.n).ne(0);
      counts = counts.defined() ? counts.logical_and(visible) : visible;
    }
    if (counts.defined()) scores = without_hidden(scores, counts);
    const auto p = probabilities(scores, q.scalar_type(), e, mask);
    results.push_back(at::matmul(p, heads(v, e.key, e.n)).transpose(0, 1).reshape({e.m, -1}));
  }
  return placed(results, *o.query_rows, q.size(0));
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const CausalAttentionOptions& o) {
  const DropoutMask mask(o.dropout, q.size(0));
  const bool plain = is_plain(o, mask);
  if (plain && is_one_batch(o, q.size(0)) && k.size(0) == q.size(0)) {
    const auto rows = [&](const at::Tensor& x) { return x.unflatten(0, {o.query_rows->count(), -1}); };
    return plain_causal_attention(rows(q), rows(k), rows(v), o.scale);
  }
  std::vector<at::Tensor> results;
  for (std::int64_t s = 0; s < o.query_rows->count(); ++s) {
    const auto e = extent_of(o, s);
    if (plain && e.m == e.n) {
      const auto row = [&](const at::Tensor& x) { return x.narrow(0, e.key, e.n).unsqueeze(0); };
      results.push_back(plain_causal_attention(q.narrow(0, e.query, e.m).unsqueeze(0), row(k), row(v), o.scale));
      continue;
    }
    const auto query = q.narrow(0, e.query, e.m).permute({1, 2, 0, 3});  // [KV, G, M, D]
    const auto keys = [&](const at::Tensor& x) { return x.narrow(0, e.key, e.n).transpose(0, 1).unsqueeze(1); };
    const auto scores = causal_scores(at::matmul(query, keys(k).transpose(2, 3)), e, o);
    const auto p = probabilities(scores, q.scalar_type(), e, mask);
    results.push_back(at::matmul(p, keys(v)).permute({2, 0, 1, 3}).reshape({e.m, -1}));
  }
  return placed(results, *o.query_rows, q.size(0));
}

}  // namespace tessera::nn::composite
