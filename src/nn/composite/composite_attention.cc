#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <memory>
#include <optional>

#include "nn/composite/composite.h"
#include "nn/ops/dropout_mask.h"
#include "tensor/device.h"
#include "tensor/device_kernels.h"

namespace tessera::nn::composite {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Shapes: M queries and N keys of one sequence.

/// One sequence: where its queries and keys begin in the tensors, and how many there are.
struct Extent {
  std::int64_t query, m, key, n;
};

Extent extent_of(const AttentionOptions& o, std::int64_t sequence) {
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
at::Tensor causal_scores(const at::Tensor& products, const Extent& e, const AttentionOptions& o) {
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
bool is_plain(const AttentionOptions& o, const DropoutMask& mask) {
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

/// [sequences + 1] int32 where `like` lies: where each begins, and the end of the last; undefined where they do not
/// follow each other from the first of `tokens` to the last.
at::Tensor offsets_of(const std::shared_ptr<const SequenceRows>& rows, std::int64_t tokens, const at::Tensor& like) {
  struct Made {
    std::shared_ptr<const SequenceRows> rows;
    at::Tensor offsets;
  };
  thread_local Made last;  // all layers of a pass ask for the same
  if (last.rows == rows && last.offsets.defined() && last.offsets.device() == like.device()) return last.offsets;
  auto offsets = at::empty({rows->count() + 1}, at::kInt);
  auto* to = offsets.mutable_data_ptr<std::int32_t>();
  std::int64_t end = 0;
  for (std::int64_t s = 0; s < rows->count(); ++s) {
    if (rows->begin[static_cast<std::size_t>(s)] != end) return {};
    to[s] = static_cast<std::int32_t>(end);
    end += rows->length[static_cast<std::size_t>(s)];
  }
  if (end != tokens) return {};
  to[rows->count()] = static_cast<std::int32_t>(end);
  last = {rows, tensor::beside(offsets, like)};
  return last.offsets;
}

/// Sequences of any lengths, one after another, by libtorch's FlashAttention (Dao 2023) of NVIDIA's GPUs, which keeps
/// q, k, v, the result and a number for each query and head. q: [T, H, D]; k, v: [T, KV, D].
class FlashAttention : public torch::autograd::Function<FlashAttention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& offsets, std::int64_t longest, double scale, std::int64_t window) {
    const auto [out, statistics, state, unused, none] =
        at::_flash_attention_forward(q, k, v, offsets, offsets, longest, longest, /*dropout_p=*/0.0, /*is_causal=*/true,
                                     /*return_debug_mask=*/false, scale, before(window), after(window));
    ctx->save_for_backward({q, k, v, out, statistics, state, unused, offsets});
    ctx->saved_data["longest"] = longest;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["window"] = window;
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto longest = ctx->saved_data["longest"].toInt(), window = ctx->saved_data["window"].toInt();
    const auto [gq, gk, gv] = at::_flash_attention_backward(
        grads[0].contiguous(), saved[0], saved[1], saved[2], saved[3], saved[4], saved[7], saved[7], longest, longest,
        /*dropout_p=*/0.0, /*is_causal=*/true, saved[5], saved[6], ctx->saved_data["scale"].toDouble(), before(window),
        after(window));
    return {gq, gk, gv, {}, {}, {}, {}};
  }

 private:
  static std::optional<std::int64_t> before(std::int64_t window) {
    return window > 0 ? std::optional(window - 1) : std::nullopt;
  }
  static std::optional<std::int64_t> after(std::int64_t window) {
    return window > 0 ? std::optional<std::int64_t>(0) : std::nullopt;
  }
};

/// What that attention takes.
bool fits_flash(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& o, const DropoutMask& mask) {
  const auto size = q.size(-1);
  return q.is_cuda() && (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf) && size % 8 == 0 &&
         size <= 256 && o.query_rows->begin == o.key_rows->begin && o.query_rows->length == o.key_rows->length &&
         q.size(0) == k.size(0) && o.softcap == 0 && !o.key_visible.defined() && !o.slopes.defined() && !mask.drops();
}

/// All sequences are equally long, follow each other in q, k and v, and have as many queries as keys.
bool is_one_batch(const AttentionOptions& o, std::int64_t tokens) {
  const auto count = o.query_rows->count();
  if (count == 0 || tokens % count != 0) return false;
  const auto length = tokens / count;
  for (std::int64_t s = 0; s < count; ++s) {
    const auto e = extent_of(o, s);
    if (e.m != length || e.n != length || e.query != s * length || e.key != s * length) return false;
  }
  return true;
}

/// Whether cuDNN's attention is the faster one: on Hopper (1.4 to 2 times on an H100), for batches of one length. It
/// builds a plan for each shape, so lengths that most likely do not come again are left to FlashAttention; so is what
/// must give the same bits in every run.
bool prefers_cudnn(const at::Tensor& q, const AttentionOptions& o) {
  constexpr std::int64_t kRound = 128;
  const auto capability = tensor::compute_capability(q);
  return o.window == 0 && q.size(-1) <= 128 && o.query_rows->longest() % kRound == 0 && capability >= 90 &&
         capability < 100 && !at::globalContext().deterministicAlgorithms();
}

/// A bias by distance, [H, M' + N' - 1], for each pair of a sequence, [H, M, N]; longest: M'.
at::Tensor of_pairs(const at::Tensor& bias, std::int64_t longest, const Extent& e) {
  const auto places = bias.options().dtype(at::kLong).requires_grad(false);
  const auto distances = at::arange(e.n, places).unsqueeze(0) - at::arange(e.m, places).unsqueeze(1) + (longest - 1);
  return bias.index_select(1, distances.flatten()).view({bias.size(0), e.m, e.n});
}

/// A table with a row for each distance, from the greatest to the smallest.
at::Tensor by_distance(const at::Tensor& table, const DistanceTables& tables) {
  if (!table.defined()) return table;
  const std::vector<std::int64_t> rows(tables.rows->rbegin(), tables.rows->rend());
  return lookup(table, at::tensor(rows, at::TensorOptions().dtype(at::kLong)), -1);
}

/// The products of tokens [H, N, D] with the rows of their distances to all tokens, [H, N, N]: of token t the row of
/// the distance t - u for token u. rows: those of the distances N - 1 .. -(N - 1), [2N - 1, H, D].
at::Tensor distance_products(const at::Tensor& x, const at::Tensor& rows) {
  // [H, N, 2N - 1]; of token t, u is column N - 1 - t + u
  const auto all = at::matmul(x, rows.permute({1, 2, 0})).contiguous();
  const std::int64_t n = x.size(1), width = 2 * n - 1;
  return all.as_strided({x.size(0), n, n}, {n * width, width - 1, 1}, all.storage_offset() + n - 1);
}

/// Of encoders, and of decoders whose scores have a bias: all queries and keys of a head at once. [T, H * D]
at::Tensor whole_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o,
                           const ScoreTerms& terms) {
  const std::int64_t num_heads = k.size(1);
  const auto& [bias, distances] = terms;
  const DropoutMask mask(o.dropout, q.size(0));
  const auto with_query = by_distance(distances.with_query, distances),
             with_key = by_distance(distances.with_key, distances);
  std::vector<at::Tensor> results;
  for (std::int64_t s = 0; s < o.query_rows->count(); ++s) {
    const auto e = extent_of(o, s);
    const auto heads = [&](const at::Tensor& x, std::int64_t begin, std::int64_t length) {
      return x.narrow(0, begin, length).transpose(0, 1);
    };
    const auto queries = heads(q.select(2, 0), e.query, e.m);
    auto products = at::matmul(queries, heads(k, e.key, e.n).transpose(1, 2));  // [H, M, N]
    // Rows of this sequence's distances; for keys in the other order, as they are counted from there.
    const auto rows = [&](const at::Tensor& table) {
      return table.narrow(0, table.size(0) / 2 - (e.n - 1), 2 * e.n - 1).view({2 * e.n - 1, num_heads, -1});
    };
    if (with_query.defined()) products = products + distance_products(queries, rows(with_query));
    if (with_key.defined())
      products = products + distance_products(heads(k, e.key, e.n), rows(with_key).flip(0)).transpose(1, 2);
    if (o.scale != 1.0) products = products * o.scale;
    if (bias.defined()) products = products + of_pairs(bias.to(products.scalar_type()), o.query_rows->longest(), e);
    auto scores = products.to(at::kFloat);
    auto counts = o.causal ? keys_before(e, 0, q) : at::Tensor();
    if (o.key_visible.defined()) {
      const auto visible = o.key_visible.narrow(0, e.key, e.n).ne(0);
      counts = counts.defined() ? counts.logical_and(visible) : visible;
    }
    if (counts.defined()) scores = without_hidden(scores, counts);
    if (o.hides_queries && o.key_visible.defined())
      scores = scores.masked_fill(o.key_visible.narrow(0, e.key, e.n).eq(0).unsqueeze(1), 0.0);
    const auto p = probabilities(scores, q.scalar_type(), e, mask);
    results.push_back(at::matmul(p, heads(v, e.key, e.n)).transpose(0, 1).reshape({e.m, -1}));
  }
  return placed(results, *o.query_rows, q.size(0));
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o,
                     const ScoreTerms& terms) {
  if (!o.causal || terms.bias.defined()) return whole_attention(q, k, v, o, terms);
  const DropoutMask mask(o.dropout, q.size(0));
  if (fits_flash(q, k, o, mask)) {
    if (is_one_batch(o, q.size(0)) && prefers_cudnn(q, o)) {
      const auto heads_first = [&](const at::Tensor& x) {
        return x.unflatten(0, {o.query_rows->count(), -1}).transpose(1, 2);
      };
      return std::get<0>(at::_scaled_dot_product_cudnn_attention(
                             heads_first(q.flatten(1, 2)), heads_first(k), heads_first(v), /*attn_bias=*/{},
                             /*compute_log_sumexp=*/at::GradMode::is_enabled(), /*dropout_p=*/0.0, /*is_causal=*/true,
                             /*return_debug_mask=*/false, o.scale))
          .transpose(1, 2)
          .reshape({q.size(0), -1});
    }
    if (const auto offsets = offsets_of(o.query_rows, q.size(0), q); offsets.defined())
      return FlashAttention::apply(q.flatten(1, 2), k, v, offsets, o.query_rows->longest(), o.scale, o.window)
          .flatten(1);
  }
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
