#include "nn/ops/causal_attention_bf16.h"
#include "nn/ops/device.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "nn/kernels/bf16_dot.h"
#include "nn/kernels/row_kernels.h"
#include "nn/ops/causal_scores.h"

namespace tessera::nn {
namespace {

// Shapes: N keys of a sequence, which has as many queries; B queries of a block and W = vnni_columns(its keys).

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

  std::int64_t width() const { return kernels::vnni_columns(keys); }
  std::int64_t stride() const { return kernels::vnni_stride(keys); }  // of rows of W
  bool sees_all() const { return options.key_visible.defined(); }     // a query that sees no visible key reads all
  /// Of queries [i, i + count): keys [first, last) by whole groups.
  std::pair<std::int64_t, std::int64_t> keys_of(std::int64_t i, std::int64_t rows) const {
    if (sees_all()) return {0, width()};
    return {rounded_down(scores.row(i).first), kernels::vnni_columns(scores.row(i + rows - 1).last)};
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

/// s [B, W] = q k^T where something is seen. k: the transpose of the block's keys, N' apart.
void score_products(const HeadBlock& b, const HeadRows<const std::uint16_t>& q, std::int64_t size,
                    const kernels::VnniMatrix& k, float* s) {
  for_groups(b.count, [&](std::int64_t i, std::int64_t rows) {
    const auto [first, last] = b.keys_of(i, rows);
    kernels::multiply_vnni({q.row(i), q.stride, 2}, {k.at + first, k.stride}, {s + i * b.stride() + first, b.stride()},
                           {rows, last - first, size / 2}, /*add=*/false);
  });
}

/// y [B, D] = p x where something is seen. p: [B, W] bfloat16; x: rows of the block's keys.
void key_products(const HeadBlock& b, const std::uint16_t* p, const std::uint32_t* x, std::int64_t size, float* y) {
  for_groups(b.count, [&](std::int64_t i, std::int64_t rows) {
    const auto [first, last] = b.keys_of(i, rows);
    const auto pairs = (std::min(last, b.keys) + 1) / 2 - first / 2;
    kernels::multiply_vnni({p + i * b.stride() + first, b.stride(), 2}, {x + first / 2 * size, size},
                           {y + i * size, size}, {rows, size, pairs}, /*add=*/false);
  });
}

/// sums [keys, D] += p^T x where something is seen. p: [B / 2, W] pairs of queries; x: rows of the block's queries.
void query_products(const HeadBlock& b, const std::uint32_t* p, const std::uint32_t* x, std::int64_t size,
                    float* sums) {
  for_groups(b.keys, [&](std::int64_t j, std::int64_t rows) {
    const auto [first, last] = b.query_pairs_of(j);
    const auto* from = reinterpret_cast<const std::uint16_t*>(p + first * b.stride() + j);
    kernels::multiply_vnni({from, 2, 2 * b.stride()}, {x + first * size, size}, {sums + j * size, size},
                           {rows, size, last - first}, /*add=*/true);
  });
}

void narrow_rows(const float* x, std::int64_t rows, std::int64_t size, const HeadRows<std::uint16_t>& out) {
  for (std::int64_t i = 0; i < rows; ++i) kernels::narrow_row(x + i * size, out.row(i), size);
}

/// Rows of a head, in the VNNI layout, dense.
const std::uint32_t* packed(const HeadRows<const std::uint16_t>& x, std::int64_t rows, std::int64_t size,
                            Scratch<std::uint32_t>& out) {
  auto* at = out.of((rows + 1) / 2 * size);
  kernels::pack_vnni(x.at, x.stride, rows, size, at, size);
  return at;
}
/// Their transpose: rows vnni_stride(rows) apart.
kernels::VnniMatrix packed_transposed(const HeadRows<const std::uint16_t>& x, std::int64_t rows, std::int64_t size,
                                      Scratch<std::uint32_t>& out) {
  const auto stride = kernels::vnni_stride(rows);
  auto* at = out.of(size / 2 * stride);
  kernels::pack_vnni_transposed(x.at, x.stride, rows, size, at, stride);
  return {at, stride};
}

/// Attends for one head of keys in one sequence after another; memory is kept from one to the next.
class HeadForward {
 public:
  HeadForward(const CausalAttentionCall& call, const at::Tensor& out, const at::Tensor& lse)
      : c_(call), out_(out), sums_(lse.mutable_data_ptr<float>()) {}

  void attend(std::int64_t s, std::int64_t head) {
    const auto& o = c_.options;
    const std::int64_t n = o.key_rows->length[s], begin = o.key_rows->begin[s], group = c_.q.size(2);
    const auto keys = packed_transposed(head_rows(c_.k, begin, head), n, size_, keys_);
    const auto* values = packed(head_rows(c_.v, begin, head), n, value_size_, values_);
    for (std::int64_t g = 0; g < group; ++g) {
      for_blocks(o, s, head, head * group + g, [&](const HeadBlock& b) {
        auto* scores = scores_.of(b.count * b.stride());
        score_products(b, head_rows(c_.q, b.query_row, head, g), size_, {keys.at + b.lo, keys.stride}, scores);
        softmax(b, scores);
        weigh(b, values + b.lo / 2 * value_size_, head_rows<std::uint16_t>(out_, b.query_row, head, g));
      });
    }
  }

 private:
  /// Scores become probabilities without their scale, in bfloat16.
  void softmax(const HeadBlock& b, float* scores) {
    auto* p = probabilities_.of(b.count * b.stride());
    float* scale = scales_.of(b.count);
    for_groups(b.count, [&](std::int64_t begin, std::int64_t rows) {
      const auto [first, last] = b.keys_of(begin, rows);
      for (std::int64_t i = begin; i < begin + rows; ++i) {
        float* row = scores + i * b.stride();
        const auto softmax = kernels::score_softmax(row, b.row(i, last));
        sums_[b.scores.lse_index(i, c_.k.size(1) * c_.q.size(2))] = softmax.lse;
        scale[i] = softmax.scale;
        if (c_.mask.drops()) drop(row, row, i, b, c_.mask);
        kernels::narrow_row(row + first, p + i * b.stride() + first, last - first);
      }
    });
  }

  void weigh(const HeadBlock& b, const std::uint32_t* values, const HeadRows<std::uint16_t>& out) {
    auto* y = result_.of(b.count * value_size_);
    const float* scale = scales_.of(b.count);
    key_products(b, probabilities_.of(b.count * b.stride()), values, value_size_, y);
    for (std::int64_t i = 0; i < b.count; ++i) kernels::scale_row(y + i * value_size_, scale[i], value_size_);
    narrow_rows(y, b.count, value_size_, out);
  }

  const CausalAttentionCall& c_;
  const at::Tensor& out_;
  float* sums_;
  const std::int64_t size_ = c_.k.size(2), value_size_ = c_.v.size(2);
  Scratch<std::uint32_t> keys_, values_;
  Scratch<std::uint16_t> probabilities_;
  Scratch<float> scores_, scales_, result_;
};

/// The gradients of one head of keys in one sequence after another.
class HeadBackward {
 public:
  HeadBackward(const CausalAttentionCall& call, const at::Tensor& g, const at::Tensor& lse,
               const CausalAttentionGradients& out)
      : c_(call), g_(g), out_(out), sums_(lse.const_data_ptr<float>()) {}

  void attend(std::int64_t s, std::int64_t head) {
    const auto& o = c_.options;
    const std::int64_t n = o.key_rows->length[s], begin = o.key_rows->begin[s], group = c_.q.size(2);
    const auto ks = head_rows(c_.k, begin, head);
    keys_ = packed_transposed(ks, n, size_, transposed_keys_);
    values_ = packed_transposed(head_rows(c_.v, begin, head), n, value_size_, transposed_values_);
    key_rows_ = packed(ks, n, size_, packed_keys_);
    auto *k_sums = zeros(key_sums_, n * size_), *v_sums = zeros(value_sums_, n * value_size_);
    zero_ = zeros(zeros_, keys_.stride);
    for (std::int64_t h = 0; h < group; ++h) {
      for_blocks(o, s, head, head * group + h, [&](const HeadBlock& b) {
        const auto qs = head_rows(c_.q, b.query_row, head, h), gs = head_rows(g_, b.query_row, head, h);
        score_gradients(b, qs, gs);
        query_gradient(b, head_rows<std::uint16_t>(out_.q, b.query_row, head, h));
        query_products(b, probability_pairs_.of(pairs_of(b) * b.stride()), packed(gs, b.count, value_size_, gradients_),
                       value_size_, v_sums + b.lo * value_size_);
        query_products(b, score_pairs_.of(pairs_of(b) * b.stride()), packed(qs, b.count, size_, queries_), size_,
                       k_sums + b.lo * size_);
      });
    }
    narrow_rows(k_sums, n, size_, head_rows<std::uint16_t>(out_.k, begin, head));
    narrow_rows(v_sums, n, value_size_, head_rows<std::uint16_t>(out_.v, begin, head));
  }

 private:
  static float* zeros(Scratch<float>& scratch, std::int64_t n) {
    auto* at = scratch.of(n);
    std::fill(at, at + n, 0.0f);
    return at;
  }
  static std::int64_t pairs_of(const HeadBlock& b) { return (b.count + 1) / 2; }

  /// Probabilities again and the gradients of the scores, as pairs of queries; the latter also as rows.
  void score_gradients(const HeadBlock& b, const HeadRows<const std::uint16_t>& q,
                       const HeadRows<const std::uint16_t>& g) {
    const std::int64_t width = b.stride();
    auto *p = scores_.of(b.count * width), *dp = score_gradients_.of(b.count * width);
    score_products(b, q, size_, {keys_.at + b.lo, keys_.stride}, p);
    score_products(b, g, value_size_, {values_.at + b.lo, values_.stride}, dp);
    for_groups(b.count, [&](std::int64_t from, std::int64_t rows) {
      const auto [first, last] = b.keys_of(from, rows);
      for (std::int64_t i = from; i < from + rows; ++i) softmax_backward(b, i, last, p + i * width, dp + i * width);
      narrow(b, from, rows, first, last);
    });
  }

  /// Of query i, in place: products become probabilities, dp the gradient of the scores.
  void softmax_backward(const HeadBlock& b, std::int64_t i, std::int64_t last, float* p, float* dp) {
    const auto how = b.row(i, last);
    auto* products = c_.options.softcap > 0 ? products_.of(b.stride()) : nullptr;
    if (products) std::copy(p, p + b.stride(), products);
    if (c_.mask.drops()) drop(dp, dp, i, b, c_.mask);
    const float lse = sums_[b.scores.lse_index(i, c_.k.size(1) * c_.q.size(2))];
    const float dot = kernels::score_probabilities(p, lse, dp, how);
    kernels::score_backward(p, products, dp, dot, how);
    if (c_.mask.drops()) drop(p, p, i, b, c_.mask);
  }

  /// Of queries [from, from + rows) and keys [first, last): to bfloat16.
  void narrow(const HeadBlock& b, std::int64_t from, std::int64_t rows, std::int64_t first, std::int64_t last) {
    const std::int64_t width = b.stride(), pairs = pairs_of(b);
    const auto *p = scores_.of(b.count * width), *dp = score_gradients_.of(b.count * width);
    auto *p_pairs = probability_pairs_.of(pairs * width), *s_pairs = score_pairs_.of(pairs * width);
    auto* s_rows = score_rows_.of(b.count * width);
    for (std::int64_t i = from; i < from + rows; i += 2) {
      const std::int64_t even = i * width + first;
      const bool alone = i + 1 == b.count;
      const auto odd = [&](const float* x) { return alone ? zero_ : x + even + width; };
      kernels::narrow_to_vnni(p + even, odd(p), last - first, p_pairs + i / 2 * width + first, nullptr, nullptr);
      kernels::narrow_to_vnni(dp + even, odd(dp), last - first, s_pairs + i / 2 * width + first, s_rows + even,
                              alone ? nullptr : s_rows + even + width);
    }
  }

  void query_gradient(const HeadBlock& b, const HeadRows<std::uint16_t>& out) {
    auto* dq = query_gradients_.of(b.count * size_);
    key_products(b, score_rows_.of(b.count * b.stride()), key_rows_ + b.lo / 2 * size_, size_, dq);
    narrow_rows(dq, b.count, size_, out);
  }

  const CausalAttentionCall& c_;
  const at::Tensor& g_;
  const CausalAttentionGradients& out_;
  const float* sums_;
  const std::int64_t size_ = c_.k.size(2), value_size_ = c_.v.size(2);
  kernels::VnniMatrix keys_{}, values_{};  // transposed, of this head
  const std::uint32_t* key_rows_ = nullptr;
  const float* zero_ = nullptr;  // in place of the second query of the last pair
  Scratch<std::uint32_t> packed_keys_, transposed_keys_, transposed_values_, queries_, gradients_, probability_pairs_,
      score_pairs_;
  Scratch<std::uint16_t> score_rows_;
  Scratch<float> scores_, products_, score_gradients_, query_gradients_, key_sums_, value_sums_, zeros_;
};

}  // namespace

bool attends_in_bf16(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const CausalAttentionOptions& o) {
  const auto fits = [](const at::Tensor& t) {
    return has_kernels(t) && t.scalar_type() == at::kBFloat16 && t.size(-1) % kGroup == 0 && t.size(-1) > 0;
  };
  return fits(q) && fits(k) && fits(v) && o.query_rows->length == o.key_rows->length &&
         o.key_rows->count() * k.size(1) >= at::get_num_threads() && kernels::has_bf16_dot();
}

void attend_bf16(const CausalAttentionCall& call, const at::Tensor& out, const at::Tensor& lse) {
  const std::int64_t kv = call.k.size(1);
  for_heads(call.options, kv, [&](std::int64_t begin, std::int64_t end) {
    HeadForward head(call, out, lse);
    for (std::int64_t i = begin; i < end; ++i) head.attend(i / kv, i % kv);
  });
}

void attend_bf16_backward(const CausalAttentionCall& call, const at::Tensor& g, const at::Tensor& lse,
                          const CausalAttentionGradients& out) {
  const std::int64_t kv = call.k.size(1);
  for_heads(call.options, kv, [&](std::int64_t begin, std::int64_t end) {
    HeadBackward head(call, g, lse, out);
    for (std::int64_t i = begin; i < end; ++i) head.attend(i / kv, i % kv);
  });
}

}  // namespace tessera::nn
