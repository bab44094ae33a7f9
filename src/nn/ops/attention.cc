#include "nn/ops/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "nn/composite/composite.h"
#include "nn/ops/device.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/gemm.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/rows.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Shapes: H heads, D head size, M query tokens and N key tokens of one sequence.

/// [M, H * D] rows of one sequence as [H, M, D], in place.
at::Tensor heads(const at::Tensor& x, std::int64_t begin, std::int64_t length, std::int64_t num_heads) {
  return x.narrow(0, begin, length).view({length, num_heads, -1}).transpose(0, 1);
}

std::int64_t probabilities_numel(const AttentionOptions& o) {
  std::int64_t n = 0;
  for (std::int64_t s = 0; s < o.query_rows->count(); ++s) n += o.query_rows->length[s] * o.key_rows->length[s];
  return n * o.num_heads;
}

/// Where a softmax row's keys are hidden; scores become probabilities in place.
class RowSoftmax {
 public:
  RowSoftmax(const AttentionOptions& options, const at::Tensor& bias, std::int64_t sequence)
      : options_(options),
        m_(options.query_rows->length[sequence]),
        n_(options.key_rows->length[sequence]),
        bias_(bias.defined() ? bias.const_data_ptr<float>() : nullptr),
        bias_m_(bias.defined() ? bias.size(1) : 0),
        bias_n_(bias.defined() ? bias.size(2) : 0),
        visible_(options.key_visible.defined()
                     ? options.key_visible.const_data_ptr<std::uint8_t>() + options.key_rows->begin[sequence]
                     : nullptr) {}

  std::int64_t bias_offset(std::int64_t row) const { return ((row / m_) * bias_m_ + row % m_) * bias_n_; }
  std::int64_t seen(std::int64_t row) const {
    return options_.causal ? std::min(n_, std::max<std::int64_t>(0, row % m_ + n_ - m_ + 1)) : n_;
  }

  /// The row's query is hidden: nothing that it scores counts.
  bool hides(std::int64_t row) const { return options_.hides_queries && visible_ && !visible_[row % m_]; }

  void apply(float* scores, std::int64_t row) const {
    const std::int64_t seen_keys = seen(row);
    bool any = visible_ == nullptr && seen_keys > 0;
    for (std::int64_t j = 0; visible_ && j < seen_keys; ++j) {
      if (!visible_[j]) scores[j] = -std::numeric_limits<float>::max();
      any = any || visible_[j];
    }
    any = any && !hides(row);
    if (!any) return std::fill(scores, scores + n_, 1.0f / static_cast<float>(n_));
    kernels::softmax(scores, bias_ ? bias_ + bias_offset(row) : nullptr, seen_keys);
    std::fill(scores + seen_keys, scores + n_, 0.0f);
  }

 private:
  const AttentionOptions& options_;
  std::int64_t m_, n_;
  const float* bias_;
  std::int64_t bias_m_, bias_n_;
  const std::uint8_t* visible_;
};

/// One sequence's slice of the kept probabilities.
struct Slice {
  at::Tensor p;            // [H, M, N]
  std::int64_t query_row;  // of its first query, in q
  DropoutMask mask;        // by query
  /// Row r of p as [H * M, N], masked.
  void drop(const float* from, float* to, std::int64_t r) const {
    kernels::dropout(from, to, p.size(2), head_offset(r / p.size(1)), mask.row(query_row + r % p.size(1)));
  }
};

at::Tensor dropped(const Slice& slice) {
  if (!slice.mask.drops()) return slice.p;
  const auto out = at::empty_like(slice.p);
  const std::int64_t n = slice.p.size(2), rows = slice.p.size(0) * slice.p.size(1);
  for_rows(rows, n, [&](std::int64_t first, std::int64_t last) {
    ReadRow in(slice.p, n);
    WriteRow result(out, n);
    for (std::int64_t r = first; r < last; ++r) {
      slice.drop(in.at(r * n), result.at(r * n), r);
      result.store();
    }
  });
  return out;
}

struct SavedAttention : torch::CustomClassHolder {
  AttentionOptions options;
  decltype(DistanceTables::rows) distance_rows;
  DropoutMask mask;
};

class Attention : public torch::autograd::Function<Attention> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& given_bias, const std::optional<at::Tensor>& with_query,
                            const std::optional<at::Tensor>& with_key,
                            const decltype(DistanceTables::rows)& distance_rows, const AttentionOptions& options) {
    const auto bias = given_bias.value_or(at::Tensor());
    const DistanceTables distances{with_query.value_or(at::Tensor()), with_key.value_or(at::Tensor()), distance_rows};
    auto saved = c10::make_intrusive<SavedAttention>();
    saved->options = options;
    saved->distance_rows = distance_rows;
    saved->mask = DropoutMask(options.dropout, q.size(0));
    const auto bias32 = bias.defined() ? bias.to(at::kFloat).contiguous() : bias;
    const auto out = at::empty(q.sizes(), q.options());
    const auto kept = at::empty({probabilities_numel(options)}, q.options());
    std::int64_t offset = 0;
    for (std::int64_t s = 0; s < options.query_rows->count(); ++s) {
      const auto slice = slice_of(kept, *saved, s, offset);
      probabilities({q, k}, bias32, distances, options, s, slice.p);
      const auto v_s = heads(v, options.key_rows->begin[s], options.key_rows->length[s], options.num_heads);
      auto out_s = heads(out, options.query_rows->begin[s], options.query_rows->length[s], options.num_heads);
      out_s.copy_(gemm(dropped(slice), v_s));
      offset += slice.p.numel();
    }
    ctx->save_for_backward({q, k, v, kept, distances.with_query, distances.with_key});
    ctx->saved_data["options"] = c10::IValue::make_capsule(saved);
    if (bias.defined()) ctx->saved_data["bias_sizes"] = bias.sizes().vec();
    ctx->saved_data["bias_dtype"] = static_cast<std::int64_t>(bias.defined() ? bias.scalar_type() : at::kFloat);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &kept = saved[3];
    const auto state = c10::static_intrusive_pointer_cast<SavedAttention>(ctx->saved_data["options"].toCapsule());
    const auto& o = state->options;
    const auto g = grads[0].contiguous();
    const DistanceTables distances{saved[4], saved[5], state->distance_rows};
    const auto gq = at::zeros_like(q), gk = at::zeros_like(k), gv = at::zeros_like(v);
    std::size_t input = 3;  // inputs that are not there are not counted, and tables have no bias beside them
    const auto gtable = [&](const at::Tensor& t) {
      const bool wanted = t.defined() && ctx->needs_input_grad(input++);
      return wanted ? at::zeros_like(t, t.options().dtype(at::kFloat)) : at::Tensor();
    };
    const auto gwith_query = gtable(distances.with_query);
    const DistanceTables gdistances{gwith_query, gtable(distances.with_key)};
    at::Tensor gbias;
    if (ctx->saved_data.count("bias_sizes") && ctx->needs_input_grad(3)) {
      gbias = at::zeros(ctx->saved_data["bias_sizes"].toIntVector(), q.options().dtype(at::kFloat));
    }
    std::int64_t offset = 0;
    for (std::int64_t s = 0; s < o.query_rows->count(); ++s) {
      const auto slice = slice_of(kept, *state, s, offset);
      offset += slice.p.numel();
      const auto query = [&](const at::Tensor& t) {
        return heads(t, o.query_rows->begin[s], o.query_rows->length[s], o.num_heads);
      };
      const auto key = [&](const at::Tensor& t) {
        return heads(t, o.key_rows->begin[s], o.key_rows->length[s], o.num_heads);
      };
      key(gv).copy_(gemm(dropped(slice).transpose(1, 2), query(g)));
      const auto ds = gemm(query(g), key(v).transpose(1, 2));  // d(dropped p), then d(score)
      score_gradient(slice, RowSoftmax(o, gbias, s), gbias, ds);
      if (o.scale != 1.0) ds.mul_(o.scale);
      query(gq).copy_(gemm(ds, key(k)));
      key(gk).copy_(gemm(ds.transpose(1, 2), query(q)));
      if (distances.any()) add_distance_gradients(ds, {query(q), key(k)}, distances, {query(gq), key(gk)}, gdistances);
    }
    const auto as_given = [&](const at::Tensor& t) { return t.defined() ? t.to(q.scalar_type()) : t; };
    if (gbias.defined()) gbias = gbias.to(static_cast<at::ScalarType>(ctx->saved_data["bias_dtype"].toInt()));
    return {gq, gk, gv, gbias, as_given(gdistances.with_query), as_given(gdistances.with_key), {}, {}};
  }

 private:
  static Slice slice_of(const at::Tensor& kept, const SavedAttention& saved, std::int64_t s, std::int64_t offset) {
    const auto& o = saved.options;
    const std::int64_t m = o.query_rows->length[s], n = o.key_rows->length[s];
    return {kept.narrow(0, offset, o.num_heads * m * n).view({o.num_heads, m, n}), o.query_rows->begin[s], saved.mask};
  }

  /// x: the queries and keys of all sequences.
  static void probabilities(const SequenceHeads& x, const at::Tensor& bias, const DistanceTables& distances,
                            const AttentionOptions& o, std::int64_t s, at::Tensor p) {
    const SequenceHeads own{heads(x.q, o.query_rows->begin[s], o.query_rows->length[s], o.num_heads),
                            heads(x.k, o.key_rows->begin[s], o.key_rows->length[s], o.num_heads)};
    gemm_to(p, own.q, own.k.transpose(1, 2));
    if (distances.any()) add_distance_scores(p, own, distances);
    if (o.scale != 1.0) p.mul_(o.scale);
    const RowSoftmax softmax(o, bias, s);
    const std::int64_t n = p.size(2);
    for_rows(p.size(0) * p.size(1), n, [&](std::int64_t first, std::int64_t last) {
      WriteRow row(p, n);
      for (std::int64_t r = first; r < last; ++r) {
        softmax.apply(row.load(r * n, n), r);
        row.store();
      }
    });
  }

  static void score_gradient(const Slice& slice, const RowSoftmax& layout, const at::Tensor& gbias,
                             const at::Tensor& ds) {
    const std::int64_t n = slice.p.size(2);
    float* bias = gbias.defined() ? gbias.mutable_data_ptr<float>() : nullptr;
    for_rows(slice.p.size(0) * slice.p.size(1), n, [&](std::int64_t first, std::int64_t last) {
      ReadRow p(slice.p, n);
      WriteRow out(ds, n);
      for (std::int64_t r = first; r < last; ++r) {
        float* row = out.load(r * n, n);
        if (slice.mask.drops()) slice.drop(row, row, r);
        if (layout.hides(r)) std::fill(row, row + n, 0.0f);
        // Hidden keys have p = 0, so they add nothing to the bias gradient either.
        kernels::softmax_backward(p.at(r * n), row, bias ? bias + layout.bias_offset(r) : nullptr, n);
        out.store();
      }
    });
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                     const AttentionOptions& options) {
  TESSERA_CHECK(q.dim() == 2 && q.size(1) % options.num_heads == 0, "attention takes [tokens, heads * size]");
  TESSERA_CHECK(options.query_rows->count() == options.key_rows->count(), "queries and keys of different batches");
  if (!has_kernels(q)) return composite::attention(q, k, v, bias, {}, options);
  return Attention::apply(q.contiguous(), k.contiguous(), v.contiguous(), optional(bias), std::nullopt, std::nullopt,
                          nullptr, options);
}

at::Tensor disentangled_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const DistanceTables& distances, const AttentionOptions& options) {
  TESSERA_CHECK(options.query_rows->begin == options.key_rows->begin, "distances are those of the same tokens");
  if (!distances.any()) return attention(q, k, v, at::Tensor(), options);
  if (!has_kernels(q)) return composite::attention(q, k, v, {}, distances, options);
  const auto table = [](const at::Tensor& t) { return optional(t.defined() ? t.contiguous() : t); };
  return Attention::apply(q.contiguous(), k.contiguous(), v.contiguous(), std::nullopt, table(distances.with_query),
                          table(distances.with_key), distances.rows, options);
}

}  // namespace tessera::nn
