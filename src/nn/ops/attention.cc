#include "nn/ops/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "nn/composite/composite.h"
#include "nn/kernels/row_kernels.h"
#include "nn/ops/attention_bf16.h"
#include "nn/ops/attention_scores.h"
#include "nn/ops/attention_token.h"
#include "nn/ops/device.h"
#include "nn/ops/gemm.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/rows.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Shapes: KV heads of keys, G query heads for each, H = KV * G, D head size; of one block: B queries, N keys, and in
// long rows not all heads (KV and H are then the block's own).

/// Of a block: fewer leave out more of what no query sees, more share a product's fixed cost.
constexpr std::int64_t kQueries = 128;
constexpr std::int64_t kScores = 1 << 20;  // of a block, about

template <class Body>
void for_blocks(const AttentionOptions& o, const at::Tensor& q, std::int64_t sequence, const Body& body) {
  const std::int64_t m = o.query_rows->length[sequence], n = o.key_rows->length[sequence];
  if (n == 0) return;
  const std::int64_t kv = q.size(1), group = q.size(2);
  const auto blocks = std::max<std::int64_t>(1, (m + kQueries - 1) / kQueries), step = (m + blocks - 1) / blocks;
  const auto heads = std::clamp<std::int64_t>(kScores / std::max<std::int64_t>(1, step * group * n), 1, kv);
  for (std::int64_t head = 0; head < kv; head += heads) {
    for (std::int64_t begin = 0; begin < m; begin += step) {
      auto block = block_of(o, sequence, begin, std::min(step, m - begin), /*unit=*/1);
      block.first_head = head;
      block.kv_heads = std::min(heads, kv - head);
      block.first_query_head = head * group;
      body(block);
    }
  }
}

struct SavedAttention : torch::CustomClassHolder {
  AttentionOptions options;
  decltype(DistanceTables::rows) distance_rows;
  DropoutMask mask;  // by query
};

/// The block's rows and heads of x [tokens, KV, G, D], as [KV, G, B, D].
at::Tensor queries_of(const at::Tensor& x, const QueryBlock& b) {
  return x.narrow(0, b.query_row, b.count).narrow(1, b.first_head, b.kv_heads).permute({1, 2, 0, 3});
}

/// As libtorch's products take it without a copy of their own: any rows in float32, else dense ones.
at::Tensor dense_rows(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? x : x.contiguous();
}

/// The same as [KV, G * B, D], copied where several heads have the same keys.
at::Tensor gathered(const at::Tensor& x, const QueryBlock& b) {
  const std::int64_t g = x.size(2), d = x.size(3);
  if (g == 1)
    return dense_rows(
        x.narrow(0, b.query_row, b.count).select(2, 0).narrow(1, b.first_head, b.kv_heads).transpose(0, 1));
  auto out = at::empty({b.kv_heads, g * b.count, d}, x.options());
  out.view({b.kv_heads, g, b.count, d}).copy_(queries_of(x, b));
  return out;
}

void scatter(const at::Tensor& block, const at::Tensor& x, const QueryBlock& b) {
  queries_of(x, b).copy_(block.view({b.kv_heads, x.size(2), b.count, x.size(3)}));
}

/// A sequence's keys or values, heads first, [KV, its keys, D]: every block of a head then reads them where they lie.
at::Tensor heads_first(const at::Tensor& x, const SequenceRows& rows, std::int64_t sequence) {
  const auto i = static_cast<std::size_t>(sequence);
  return dense_rows(x.narrow(0, rows.begin[i], rows.length[i]).transpose(0, 1));
}

/// The block's part of such, [KV, N, D].
at::Tensor keys_of(const at::Tensor& x, const QueryBlock& b) {
  return dense_rows(x.narrow(0, b.first_head, b.kv_heads).narrow(1, b.lo, b.keys));
}

/// mask(p) over [H * B, N], or p itself.
at::Tensor dropped(const at::Tensor& p, const QueryBlock& b, const DropoutMask& mask) {
  if (!mask.drops()) return p;
  const auto out = at::empty_like(p);
  for_rows(p.numel() / b.keys, b.keys, [&](std::int64_t first, std::int64_t last) {
    ReadRow in(p, b.keys);
    WriteRow result(out, b.keys);
    for (std::int64_t r = first; r < last; ++r) {
      drop(in.at(r * b.keys), result.at(r * b.keys), r, b, mask);
      result.store();
    }
  });
  return out;
}

/// body(head, its rows' begin in [H * B, N]) on this rank's threads.
template <class Body>
void for_heads(const QueryBlock& b, const Body& body) {
  for_rows(b.kv_heads, b.count * b.keys, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t h = first; h < last; ++h) body(b.first_query_head + h, h * b.count * b.keys);
  });
}

/// products [H * B, N] += the scores of distances.
void add_distances(const at::Tensor& products, const QueryBlock& b, const DistanceScores& distances) {
  if (!distances.any()) return;
  const auto sums = products.to(at::kFloat);  // products themselves in float32
  auto* p = sums.mutable_data_ptr<float>();
  for_heads(b, [&](std::int64_t head, std::int64_t at) { distances.add(head, b.begin, b.count, p + at, b.keys); });
  if (!sums.is_same(products)) products.copy_(sums);
}

/// ds: the gradient of the block's products, [H * B, N].
void add_gradient(const at::Tensor& ds, const QueryBlock& b, DistanceScores& distances) {
  if (!distances.any()) return;
  const auto gradients = ds.to(at::kFloat);
  const auto* g = gradients.const_data_ptr<float>();
  for_heads(
      b, [&](std::int64_t head, std::int64_t at) { distances.add_gradient(head, b.begin, b.count, g + at, b.keys); });
}

/// Products become probabilities in place; their log-sums are written.
void softmax(const at::Tensor& s, const AttentionCall& call, const QueryBlock& b, const at::Tensor& lse) {
  const Scores scores(call, b);
  float* sums = lse.mutable_data_ptr<float>();
  for_rows(s.numel() / b.keys, b.keys, [&](std::int64_t first, std::int64_t last) {
    WriteRow row(s, b.keys);
    for (std::int64_t r = first; r < last; ++r) {
      const auto how = scores.row(r);
      float* values = row.load(r * b.keys, how.last);
      const auto softmax = kernels::score_softmax(values, how);
      kernels::scale_row(values, softmax.scale, how.last);
      sums[scores.lse_index(r, lse.size(1))] = softmax.lse;
      row.store();
    }
  });
}

/// Products become probabilities again, and dp, their gradient, becomes that of the products, both in place.
void softmax_backward(const at::Tensor& p, const at::Tensor& dp, const AttentionCall& call, const QueryBlock& b,
                      const at::Tensor& lse, const at::Tensor& bias_gradient) {
  const Scores scores(call, b, bias_gradient);
  const float* sums = lse.const_data_ptr<float>();
  const std::int64_t together = bias_gradient.defined() ? b.count : 1;  // rows of a head
  for_rows(p.numel() / b.keys / together, b.keys * together, [&](std::int64_t first, std::int64_t last) {
    WriteRow row(p, b.keys), gradient(dp, b.keys);
    std::vector<float> products(call.options.softcap > 0 ? static_cast<std::size_t>(b.keys) : 0);
    for (std::int64_t r = first * together; r < last * together; ++r) {
      const auto how = scores.row(r);
      float *values = row.load(r * b.keys, b.keys), *gradients = gradient.load(r * b.keys, b.keys);
      if (call.mask.drops()) drop(gradients, gradients, r, b, call.mask);
      if (!products.empty()) std::copy(values, values + b.keys, products.begin());
      const float dot = kernels::score_probabilities(values, sums[scores.lse_index(r, lse.size(1))], gradients, how);
      kernels::score_backward(values, products.data(), gradients, dot, how);
      row.store();
      gradient.store();
    }
  });
}

/// Adds the blocks' gradients of one sequence's keys (or values), and writes them out.
class KeyGradient {
 public:
  KeyGradient(const at::Tensor& out, const AttentionOptions& o, std::int64_t sequence)
      : rows_(out.narrow(0, o.key_rows->begin[sequence], o.key_rows->length[sequence])),
        queries_(o.query_rows->length[sequence]) {}
  void add(const at::Tensor& block, const QueryBlock& b) {  // [KV, N, D]
    if (is_all(b)) {
      rows_.narrow(1, b.first_head, b.kv_heads).transpose(0, 1).copy_(block);
      written_ = true;
      return;
    }
    if (!sum_.defined())
      sum_ = at::zeros({rows_.size(1), rows_.size(0), rows_.size(2)}, rows_.options().dtype(at::kFloat));
    sum_.narrow(0, b.first_head, b.kv_heads).narrow(1, b.lo, b.keys).add_(block);
  }
  void write() {
    if (sum_.defined())
      rows_.transpose(0, 1).copy_(sum_);
    else if (!written_)
      rows_.zero_();
  }

 private:
  /// The sequence has no other block of these heads.
  bool is_all(const QueryBlock& b) const { return b.keys == b.total_keys && b.count == queries_; }
  at::Tensor rows_, sum_;
  std::int64_t queries_;
  bool written_ = false;
};

DistanceScores distances_of(const AttentionCall& call, std::int64_t sequence, bool with_gradients) {
  if (!call.distances.any()) return {};
  return DistanceScores(call.distances, heads_of(call.q, call.k, call.options, sequence, 0, call.k.size(1)),
                        with_gradients);
}

void attend(const AttentionCall& call, const at::Tensor& out, const at::Tensor& lse) {
  const auto &q = call.q, &k = call.k, &v = call.v;
  const auto& o = call.options;
  for (std::int64_t s = 0; s < o.query_rows->count(); ++s) {
    const auto keys = heads_first(k, *o.key_rows, s), values = heads_first(v, *o.key_rows, s);
    const auto distances = distances_of(call, s, /*with_gradients=*/false);
    for_blocks(o, q, s, [&](const QueryBlock& b) {
      const auto p = gemm(gathered(q, b), keys_of(keys, b).transpose(1, 2));
      add_distances(p, b, distances);
      softmax(p, call, b, lse);
      scatter(gemm(dropped(p, b, call.mask), keys_of(values, b)), out, b);
    });
  }
}

void attend_backward(const AttentionCall& call, const at::Tensor& g, const at::Tensor& lse,
                     const AttentionGradients& out) {
  const auto &q = call.q, &k = call.k, &v = call.v;
  const auto& o = call.options;
  for (std::int64_t s = 0; s < o.query_rows->count(); ++s) {
    const auto keys = heads_first(k, *o.key_rows, s), values = heads_first(v, *o.key_rows, s);
    auto distances = distances_of(call, s, /*with_gradients=*/true);
    KeyGradient gkeys(out.k, o, s), gvalues(out.v, o, s);
    for_blocks(o, q, s, [&](const QueryBlock& b) {
      const auto qb = gathered(q, b), gb = gathered(g, b), kb = keys_of(keys, b);
      const auto p = gemm(qb, kb.transpose(1, 2));
      const auto ds = gemm(gb, keys_of(values, b).transpose(1, 2));
      add_distances(p, b, distances);
      softmax_backward(p, ds, call, b, lse, out.bias);
      add_gradient(ds, b, distances);
      gvalues.add(gemm(dropped(p, b, call.mask).transpose(1, 2), gb), b);
      scatter(gemm(ds, kb), out.q, b);
      gkeys.add(gemm(ds.transpose(1, 2), qb), b);
    });
    gkeys.write();
    gvalues.write();
    if (distances.any()) distances.add_gradients_to(heads_of(out.q, out.k, o, s, 0, k.size(1)), out.distances);
  }
}

/// For what each query gets; zeros where some have no keys, which nothing is written for.
at::Tensor for_queries(at::IntArrayRef sizes, const at::TensorOptions& options, const AttentionOptions& o) {
  const auto& lengths = o.key_rows->length;
  const bool all_have_keys = std::find(lengths.begin(), lengths.end(), 0) == lengths.end();
  return all_have_keys ? at::empty(sizes, options) : at::zeros(sizes, options);
}

/// A bias by distance in float32.
at::Tensor in_float32(const at::Tensor& bias) {
  return bias.defined() ? bias.detach().to(at::kFloat).contiguous() : bias;
}

bool wants_gradients(std::initializer_list<at::Tensor> inputs) {
  const auto learns = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  return at::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), learns);
}

at::Tensor attend_new_tokens(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o,
                             const ScoreTerms& terms) {
  const auto out = for_queries({q.size(0), q.size(1), q.size(2), v.size(2)}, q.options(), o);
  attend_tokens({q, k, v, o, DropoutMask(), in_float32(terms.bias), terms.distances}, out);
  return out.view({q.size(0), -1});
}

class Attention : public torch::autograd::Function<Attention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& with_query,
                            const std::optional<at::Tensor>& with_key,
                            const decltype(DistanceTables::rows)& distance_rows, const AttentionOptions& o) {
    auto saved = c10::make_intrusive<SavedAttention>();
    saved->options = o;
    saved->distance_rows = distance_rows;
    saved->mask = DropoutMask(o.dropout, q.size(0));
    const DistanceTables distances{with_query.value_or(at::Tensor()), with_key.value_or(at::Tensor()), distance_rows};
    const std::int64_t heads = q.size(1) * q.size(2);
    const auto out = for_queries({q.size(0), q.size(1), q.size(2), v.size(2)}, q.options(), o);
    const auto lse = at::empty({q.size(0), heads}, q.options().dtype(at::kFloat));
    const auto given = bias.value_or(at::Tensor());
    const AttentionCall call{q, k, v, o, saved->mask, in_float32(given), distances};
    (attends_in_bf16(q, k, v, o) ? attend_bf16 : attend)(call, out, lse);
    ctx->save_for_backward({q, k, v, lse, given, distances.with_query, distances.with_key});
    ctx->saved_data["options"] = c10::IValue::make_capsule(saved);
    return out.view({q.size(0), -1});
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &bias = saved[4];
    const auto state = c10::static_intrusive_pointer_cast<SavedAttention>(ctx->saved_data["options"].toCapsule());
    const auto& o = state->options;
    const DistanceTables distances{saved[5], saved[6], state->distance_rows};
    const auto g = grads[0].contiguous().view({q.size(0), q.size(1), q.size(2), v.size(2)});
    std::size_t input = 3;  // inputs that are not there are not counted
    const auto sums = [&](const at::Tensor& t) {
      const bool wanted = t.defined() && ctx->needs_input_grad(input++);
      return wanted ? at::zeros(t.sizes(), t.options().dtype(at::kFloat)) : at::Tensor();
    };
    // Every row is written: sequences cover the queries, and with a cache there is no backward.
    AttentionGradients out{for_queries(q.sizes(), q.options(), o), at::empty(k.sizes(), k.options()),
                           at::empty(v.sizes(), v.options()), sums(bias)};
    out.distances.with_query = sums(distances.with_query);
    out.distances.with_key = sums(distances.with_key);
    const AttentionCall call{q, k, v, o, state->mask, in_float32(bias), distances};
    (attends_in_bf16(q, k, v, o) ? attend_bf16_backward : attend_backward)(call, g, saved[3], out);
    const auto as_given = [](const at::Tensor& sum, const at::Tensor& t) {
      return sum.defined() ? sum.to(t.scalar_type()) : sum;
    };
    return {out.q,
            out.k,
            out.v,
            as_given(out.bias, bias),
            as_given(out.distances.with_query, distances.with_query),
            as_given(out.distances.with_key, distances.with_key),
            {},
            {}};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o,
                     const ScoreTerms& terms) {
  TESSERA_CHECK(q.dim() == 4 && k.dim() == 3 && v.dim() == 3, "attention takes q [T, KV, G, D], k, v [T, KV, D]");
  TESSERA_CHECK(o.query_rows->count() == o.key_rows->count(), "queries and keys of different batches");
  const auto& distances = terms.distances;
  const bool same_tokens = o.query_rows->begin == o.key_rows->begin && o.query_rows->length == o.key_rows->length;
  TESSERA_CHECK(same_tokens || (!o.hides_queries && !distances.any()), "distances are those of the same tokens");
  TESSERA_CHECK(!distances.any() || (q.size(2) == 1 && !terms.bias.defined()), "distances of heads with a bias");
  if (!has_kernels(q)) return composite::attention(q, k, v, o, terms);
  if (attends_tokens(q, k, v, o) && !distances.any() && !wants_gradients({q, k, v, terms.bias}))
    return attend_new_tokens(q, k, v, o, terms);
  const auto table = [](const at::Tensor& t) { return optional(t.defined() ? t.contiguous() : t); };
  return Attention::apply(q, k, v, optional(terms.bias), table(distances.with_query), table(distances.with_key),
                          distances.rows, o);
}

}  // namespace tessera::nn
