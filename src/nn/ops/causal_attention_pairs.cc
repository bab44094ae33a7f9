#include "nn/ops/causal_attention_pairs.h"
#include "nn/ops/device.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "nn/kernels/pair_products.h"
#include "nn/kernels/row_kernels.h"
#include "nn/ops/causal_scores.h"

namespace tessera::nn {
namespace {

// Shapes: N keys of a sequence, which has as many queries; B queries of a block and W = pair_columns(its keys).

/// Queries and keys are taken in groups of so many, each with its own bounds of what is seen.
constexpr std::int64_t kGroup = 16;
constexpr std::int64_t kMostQueries = 64, kScoresOfBlock = 1 << 16;

std::int64_t rounded_down(std::int64_t i) {
  return i / kGroup * kGroup;
}

/// The rows of one head in one sequence.
template <class T>
struct HeadRows {
  T* at;
  std::int64_t stride;
  T* row(std::int64_t i) const { return at + i * stride; }
};

template <class T = const std::uint16_t>
HeadRows<T> head_rows(const at::Tensor& x, std::int64_t row, std::int64_t kv, std::int64_t g = 0) {
  const std::int64_t head = x.dim() == 4 ? g * x.stride(2) : 0;
  return {static_cast<T*>(x.data_ptr()) + row * x.stride(0) + kv * x.stride(1) + head, x.stride(0)};
}

/// Memory that is kept from one head to the next.
template <class T>
class Scratch {
 public:
  T* of(std::int64_t numel) {
    const auto bytes = numel * static_cast<std::int64_t>(sizeof(T));
    if (!bytes_.defined() || bytes_.numel() < bytes) bytes_ = at::empty({bytes}, at::kByte);
    return static_cast<T*>(bytes_.mutable_data_ptr());
  }

 private:
  at::Tensor bytes_;
};

/// One head of queries and its block, with the keys [lo, lo + keys) where lo begins a group.
struct HeadBlock : QueryBlock {
  const CausalAttentionOptions& options;
  Scores scores{options, *this};

  HeadBlock(const CausalAttentionOptions& o, const QueryBlock& block) : QueryBlock(block), options(o) {}
  HeadBlock(const HeadBlock&) = delete;
  HeadBlock& operator=(const HeadBlock&) = delete;

  std::int64_t width() const { return kernels::pair_columns(keys); }
  std::int64_t stride() const { return kernels::pair_stride(keys); }  // of rows of W
  bool sees_all() const { return options.key_visible.defined(); }     // a query that sees no visible key reads all
  /// Of queries [i, i + count): keys [first, last) by whole groups.
  std::pair<std::int64_t, std::int64_t> keys_of(std::int64_t i, std::int64_t rows) const {
    if (sees_all()) return {0, width()};
    return {rounded_down(scores.row(i).first), kernels::pair_columns(scores.row(i + rows - 1).last)};
  }
  /// Of the group of keys from j on: pairs of queries [first, last).
  std::pair<std::int64_t, std::int64_t> query_pairs_of(std::int64_t j) const {
    const std::int64_t pairs = (count + 1) / 2;
    if (sees_all()) return {0, pairs};
    const std::int64_t first = std::max<std::int64_t>(0, j - place) / 2;
    if (options.window == 0) return {first, pairs};
    return {first, std::clamp((j + kGroup - 1 - place + options.window - 1) / 2 + 1, first, pairs)};
  }
  /// Row i, its products and zeros up to key `last`.
  kernels::ScoreRow row(std::int64_t i, std::int64_t last) const {
    auto row = scores.row(i);
    if (!sees_all()) row.n = last;
    return row;
  }
};

/// body(from, count) over groups of rows.
template <class Body>
void for_groups(std::int64_t rows, const Body& body) {
  for (std::int64_t i = 0; i < rows; i += kGroup) body(i, std::min(kGroup, rows - i));
}

template <class Body>
void for_blocks(const CausalAttentionOptions& o, std::int64_t s, std::int64_t kv, std::int64_t query_head,
                const Body& body) {
  const std::int64_t n = o.key_rows->length[s];
  const auto step = std::clamp(rounded_down(kScoresOfBlock / std::max<std::int64_t>(1, n)), kGroup, kMostQueries);
  for (std::int64_t begin = 0; begin < n; begin += step) {
    const std::int64_t count = std::min(step, n - begin);
    std::int64_t lo = 0, hi = n;
    if (!o.key_visible.defined()) {
      hi = begin + count;
      if (o.window > 0) lo = rounded_down(std::max<std::int64_t>(0, begin - o.window + 1));
    }
    body(HeadBlock(o, {.first_head = kv,
                       .kv_heads = 1,
                       .first_query_head = query_head,
                       .query_row = o.query_rows->begin[s] + begin,
                       .key_row = o.key_rows->begin[s] + lo,
                       .count = count,
                       .keys = hi - lo,
                       .place = begin - lo,
                       .lo = lo,
                       .total_keys = n}));
  }
}

/// body(first, last) over all heads of keys of all sequences.
template <class Body>
void for_heads(const CausalAttentionOptions& o, std::int64_t kv, const Body& body) {
  at::parallel_for(0, o.key_rows->count() * kv, 1, body);
}

/// s [B, W] = q k^T where something is seen. k: transposed pairs of the block's keys, N' apart.
void score_products(const HeadBlock& b, const HeadRows<const std::uint16_t>& q, std::int64_t size,
                    const std::uint32_t* k, std::int64_t columns, float* s) {
  for_groups(b.count, [&](std::int64_t i, std::int64_t rows) {
    const auto [first, last] = b.keys_of(i, rows);
    kernels::multiply_pairs({q.row(i), q.stride, 2}, k + first, columns, s + i * b.stride() + first, b.stride(), rows,
                            last - first, size / 2, /*add=*/false);
  });
}

/// y [B, D] = p x where something is seen. p: [B, W] bfloat16; x: pairs of the block's keys.
void key_products(const HeadBlock& b, const std::uint16_t* p, const std::uint32_t* x, std::int64_t size, float* y) {
  for_groups(b.count, [&](std::int64_t i, std::int64_t rows) {
    const auto [first, last] = b.keys_of(i, rows);
    const auto pairs = (std::min(last, b.keys) + 1) / 2 - first / 2;
    kernels::multiply_pairs({p + i * b.stride() + first, b.stride(), 2}, x + first / 2 * size, size, y + i * size, size,
                            rows, size, pairs, /*add=*/false);
  });
}

/// sums [keys, D] += p^T x where something is seen. p: [B / 2, W] pairs of queries; x: pairs of the block's queries.
void query_products(const HeadBlock& b, const std::uint32_t* p, const std::uint32_t* x, std::int64_t size,
                    float* sums) {
  for_groups(b.keys, [&](std::int64_t j, std::int64_t rows) {
    const auto [first, last] = b.query_pairs_of(j);
    const auto* from = reinterpret_cast<const std::uint16_t*>(p + first * b.stride() + j);
    kernels::multiply_pairs({from, 2, 2 * b.stride()}, x + first * size, size, sums + j * size, size, rows, size,
                            last - first, /*add=*/true);
  });
}

void narrow_rows(const float* x, std::int64_t rows, std::int64_t size, const HeadRows<std::uint16_t>& out) {
  for (std::int64_t i = 0; i < rows; ++i) kernels::narrow_row(x + i * size, out.row(i), size);
}

}  // namespace

bool attends_in_pairs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const CausalAttentionOptions& o) {
  const auto fits = [](const at::Tensor& t) {
    return has_kernels(t) && t.scalar_type() == at::kBFloat16 && t.size(-1) % kGroup == 0 && t.size(-1) > 0;
  };
  return fits(q) && fits(k) && fits(v) && o.query_rows->length == o.key_rows->length &&
         o.key_rows->count() * k.size(1) >= at::get_num_threads() && kernels::multiplies_bfloat16_pairs();
}

void attend_in_pairs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const CausalAttentionOptions& o,
                     const DropoutMask& mask, const at::Tensor& out, const at::Tensor& lse) {
  const std::int64_t kv = k.size(1), group = q.size(2), size = k.size(2), value_size = v.size(2);
  auto* sums = lse.mutable_data_ptr<float>();
  for_heads(o, kv, [&](std::int64_t begin, std::int64_t end) {
    Scratch<std::uint32_t> keys, values;
    Scratch<std::uint16_t> probabilities;
    Scratch<float> scores, scales, result;
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t s = item / kv, head = item % kv, n = o.key_rows->length[s], columns = kernels::pair_stride(n);
      const auto ks = head_rows(k, o.key_rows->begin[s], head), vs = head_rows(v, o.key_rows->begin[s], head);
      auto *kt = keys.of(size / 2 * columns), *vp = values.of((n + 1) / 2 * value_size);
      kernels::pack_transposed_pairs(ks.at, ks.stride, n, size, kt, columns);
      kernels::pack_pairs(vs.at, vs.stride, n, value_size, vp, value_size);
      for (std::int64_t g = 0; g < group; ++g) {
        for_blocks(o, s, head, head * group + g, [&](const HeadBlock& b) {
          auto* scored = scores.of(b.count * b.stride());
          auto* p = probabilities.of(b.count * b.stride());
          auto* y = result.of(b.count * value_size);
          float* scale = scales.of(b.count);
          score_products(b, head_rows(q, b.query_row, head, g), size, kt + b.lo, columns, scored);
          for_groups(b.count, [&](std::int64_t first_row, std::int64_t rows) {
            const auto [first, last] = b.keys_of(first_row, rows);
            for (std::int64_t i = first_row; i < first_row + rows; ++i) {
              float* row = scored + i * b.stride();
              const auto softmax = kernels::score_softmax(row, b.row(i, last));
              sums[b.scores.lse_index(i, kv * group)] = softmax.lse;
              scale[i] = softmax.scale;
              if (mask.drops()) drop(row, row, i, b, mask);
              kernels::narrow_row(row + first, p + i * b.stride() + first, last - first);
            }
          });
          key_products(b, p, vp + b.lo / 2 * value_size, value_size, y);
          for (std::int64_t i = 0; i < b.count; ++i) kernels::scale_row(y + i * value_size, scale[i], value_size);
          narrow_rows(y, b.count, value_size, head_rows<std::uint16_t>(out, b.query_row, head, g));
        });
      }
    }
  });
}

void attend_in_pairs_backward(const at::Tensor& g, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& lse, const CausalAttentionOptions& o, const DropoutMask& mask,
                              const at::Tensor& gq, const at::Tensor& gk, const at::Tensor& gv) {
  const std::int64_t kv = k.size(1), group = q.size(2), size = k.size(2), value_size = v.size(2);
  const auto* sums = lse.const_data_ptr<float>();
  for_heads(o, kv, [&](std::int64_t begin, std::int64_t end) {
    Scratch<std::uint32_t> keys, transposed_keys, transposed_values, queries, gradients, probability_pairs, score_pairs;
    Scratch<std::uint16_t> score_rows;
    Scratch<float> scores, products, score_gradients, query_gradients, key_sums, value_sums, zeros;
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t s = item / kv, head = item % kv, n = o.key_rows->length[s], columns = kernels::pair_stride(n);
      const std::int64_t first_row = o.key_rows->begin[s];
      const auto ks = head_rows(k, first_row, head), vs = head_rows(v, first_row, head);
      auto *kt = transposed_keys.of(size / 2 * columns), *vt = transposed_values.of(value_size / 2 * columns);
      auto* kp = keys.of((n + 1) / 2 * size);
      kernels::pack_transposed_pairs(ks.at, ks.stride, n, size, kt, columns);
      kernels::pack_transposed_pairs(vs.at, vs.stride, n, value_size, vt, columns);
      kernels::pack_pairs(ks.at, ks.stride, n, size, kp, size);
      auto *k_sums = key_sums.of(n * size), *v_sums = value_sums.of(n * value_size), *zero = zeros.of(columns);
      std::fill(k_sums, k_sums + n * size, 0.0f);
      std::fill(v_sums, v_sums + n * value_size, 0.0f);
      std::fill(zero, zero + columns, 0.0f);
      for (std::int64_t h = 0; h < group; ++h) {
        for_blocks(o, s, head, head * group + h, [&](const HeadBlock& b) {
          const std::int64_t width = b.stride(), pairs = (b.count + 1) / 2;
          const auto qs = head_rows(q, b.query_row, head, h), gs = head_rows(g, b.query_row, head, h);
          auto *qp = queries.of(pairs * size), *gp = gradients.of(pairs * value_size);
          kernels::pack_pairs(qs.at, qs.stride, b.count, size, qp, size);
          kernels::pack_pairs(gs.at, gs.stride, b.count, value_size, gp, value_size);
          auto *p = scores.of(b.count * width), *dp = score_gradients.of(b.count * width);
          score_products(b, qs, size, kt + b.lo, columns, p);
          score_products(b, gs, value_size, vt + b.lo, columns, dp);

          auto *p_pairs = probability_pairs.of(pairs * width), *s_pairs = score_pairs.of(pairs * width);
          auto* s_rows = score_rows.of(b.count * width);
          auto* product = o.softcap > 0 ? products.of(width) : nullptr;
          for_groups(b.count, [&](std::int64_t from, std::int64_t rows) {
            const auto [first, last] = b.keys_of(from, rows);
            for (std::int64_t i = from; i < from + rows; ++i) {
              float *row = p + i * width, *gradient = dp + i * width;
              const auto how = b.row(i, last);
              if (product) std::copy(row, row + width, product);
              if (mask.drops()) drop(gradient, gradient, i, b, mask);
              const float lse = sums[b.scores.lse_index(i, kv * group)];
              const float dot = kernels::score_probabilities(row, lse, gradient, how);
              kernels::score_backward(row, product, gradient, dot, how);
              if (mask.drops()) drop(row, row, i, b, mask);
            }
            for (std::int64_t i = from; i < from + rows; i += 2) {
              const std::int64_t even = i * width + first;
              const bool alone = i + 1 == b.count;
              const auto odd = [&](const float* x) { return alone ? zero : x + even + width; };
              kernels::narrow_pairs(p + even, odd(p), last - first, p_pairs + i / 2 * width + first, nullptr, nullptr);
              kernels::narrow_pairs(dp + even, odd(dp), last - first, s_pairs + i / 2 * width + first, s_rows + even,
                                    alone ? nullptr : s_rows + even + width);
            }
          });
          auto* dq = query_gradients.of(b.count * size);
          key_products(b, s_rows, kp + b.lo / 2 * size, size, dq);
          narrow_rows(dq, b.count, size, head_rows<std::uint16_t>(gq, b.query_row, head, h));
          query_products(b, p_pairs, gp, value_size, v_sums + b.lo * value_size);
          query_products(b, s_pairs, qp, size, k_sums + b.lo * size);
        });
      }
      narrow_rows(k_sums, n, size, head_rows<std::uint16_t>(gk, first_row, head));
      narrow_rows(v_sums, n, value_size, head_rows<std::uint16_t>(gv, first_row, head));
    }
  });
}

}  // namespace tessera::nn
