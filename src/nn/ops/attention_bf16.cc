#include "nn/ops/attention_bf16.h"
#include "nn/ops/device.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "nn/kernels/bf16_dot.h"
#include "nn/kernels/bf16_tiles.h"
#include "nn/kernels/row_kernels.h"
#include "nn/ops/attention_scores.h"

namespace tessera::nn {
namespace {

// Shapes: N keys of a sequence; B queries of a block and W its keys, both by whole groups,
// for which scratch memory always has room.

constexpr std::int64_t kMostQueries = 64, kScoresOfBlock = 1 << 16;

using kernels::rounded_up;

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

/// Products by pairs, of exactly what there is. Queries and keys are taken in groups of kGroup, each with its own
/// bounds of what is seen; kInner: of the inner dimension that a product takes at once.
struct Pairs {
  static constexpr std::int64_t kGroup = 16, kInner = 2;
  struct Scope {};
  static kernels::DotRows left(const HeadRows<const std::uint16_t>& x, std::int64_t, std::int64_t,
                               Scratch<std::uint16_t>&) {
    return {x.at, x.stride, 2};
  }
  static void multiply(const kernels::DotRows& a, const kernels::VnniMatrix& b, const kernels::SumMatrix& c,
                       const kernels::DotSize& size, bool add) {
    kernels::multiply_vnni(a, b, c, size, add);
  }
};

/// Products by tiles, which read and write whole ones.
struct Tiles {
  static constexpr std::int64_t kGroup = 32, kInner = 32;
  using Scope = kernels::TileScope;
  /// A copy of the rows [rows, size], with zeros after each.
  static kernels::DotRows left(const HeadRows<const std::uint16_t>& x, std::int64_t rows, std::int64_t size,
                               Scratch<std::uint16_t>& copy) {
    const auto stride = rounded_up(size, kInner);
    auto* to = copy.of(rounded_up(rows, kGroup) * stride);
    for (std::int64_t i = 0; i < rows; ++i) {
      std::copy_n(x.row(i), size, to + i * stride);
      std::fill(to + i * stride + size, to + (i + 1) * stride, std::uint16_t{0});
    }
    return {to, stride, 2};
  }
  static void multiply(const kernels::DotRows& a, const kernels::VnniMatrix& b, const kernels::SumMatrix& c,
                       const kernels::DotSize& size, bool add) {
    kernels::multiply_tiles(a, b, c, size, add);
  }
};

/// One head of queries and its block, with the keys [lo, lo + keys) where lo begins a group.
template <class Products>
struct HeadBlock : QueryBlock {
  static constexpr std::int64_t kGroup = Products::kGroup;
  const AttentionOptions& options;
  Scores scores;

  HeadBlock(const AttentionCall& call, const QueryBlock& block, const at::Tensor& bias_gradient)
      : QueryBlock(block), options(call.options), scores(call, *this, bias_gradient) {}
  HeadBlock(const HeadBlock&) = delete;
  HeadBlock& operator=(const HeadBlock&) = delete;

  std::int64_t queries() const { return rounded_up(count, kGroup); }
  std::int64_t pairs() const { return (count + 1) / 2; }
  std::int64_t width() const { return rounded_up(keys, kGroup); }
  std::int64_t stride() const { return kernels::vnni_stride(width()); }  // of rows of W
  /// A causal query that sees no visible key reads all, too.
  bool sees_all() const { return !options.causal || options.key_visible.defined(); }
  /// Of queries [i, i + rows): keys [first, last) by whole groups.
  std::pair<std::int64_t, std::int64_t> keys_of(std::int64_t i, std::int64_t rows) const {
    if (sees_all()) return {0, width()};
    return {scores.row(i).first / kGroup * kGroup, rounded_up(scores.row(i + rows - 1).last, kGroup)};
  }
  /// Of the group of keys from j on: pairs of queries [first, last).
  std::pair<std::int64_t, std::int64_t> query_pairs_of(std::int64_t j) const {
    if (sees_all()) return {0, pairs()};
    const std::int64_t first = std::max<std::int64_t>(0, j - place) / 2;
    if (options.window == 0) return {first, pairs()};
    return {first, std::clamp((j + kGroup - 1 - place + options.window - 1) / 2 + 1, first, pairs())};
  }
  /// Row i, its products and zeros up to key `last`.
  kernels::ScoreRow row(std::int64_t i, std::int64_t last) const {
    auto row = scores.row(i);
    if (!sees_all()) row.n = last;
    return row;
  }
};

/// body(from, count) over groups of rows.
template <class Products, class Body>
void for_groups(std::int64_t rows, const Body& body) {
  for (std::int64_t i = 0; i < rows; i += Products::kGroup) body(i, std::min(Products::kGroup, rows - i));
}

template <class Products, class Body>
void for_blocks(const AttentionCall& call, std::int64_t s, std::int64_t kv, std::int64_t query_head,
                const at::Tensor& bias_gradient, const Body& body) {
  constexpr auto kGroup = Products::kGroup;
  const auto& o = call.options;
  const std::int64_t m = o.query_rows->length[s], n = o.key_rows->length[s];
  if (n == 0) return;
  const auto step = std::clamp(kScoresOfBlock / std::max<std::int64_t>(1, n) / kGroup * kGroup, kGroup, kMostQueries);
  for (std::int64_t begin = 0; begin < m; begin += step) {
    auto block = block_of(o, s, begin, std::min(step, m - begin), kGroup);
    block.first_head = kv;
    block.first_query_head = query_head;
    body(HeadBlock<Products>(call, block, bias_gradient));
  }
}

/// Calls attend(sequence, head of keys) of a Head made from `arguments` for all of them. One thread has all sequences
/// of a head where these add to the same gradients.
template <class Head, class... Arguments>
void for_heads(const AttentionCall& call, Arguments&&... arguments) {
  const std::int64_t kv = call.k.size(1), sequences = call.options.key_rows->count();
  const std::int64_t together = call.bias.defined() || call.distances.any() ? sequences : 1;
  if (sequences == 0) return;
  at::parallel_for(0, sequences / together * kv, 1, [&](std::int64_t begin, std::int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    Head head(call, arguments...);
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t s = 0; s < together; ++s) head.attend(i / kv + s, i % kv);
  });
}

/// s [B, W] = q k^T where something is seen. k: the transpose of the block's keys, N' apart.
template <class Products>
void score_products(const HeadBlock<Products>& b, const kernels::DotRows& q, std::int64_t size,
                    const kernels::VnniMatrix& k, float* s) {
  for_groups<Products>(b.count, [&](std::int64_t i, std::int64_t rows) {
    const auto [first, last] = b.keys_of(i, rows);
    Products::multiply({q.at + i * q.row, q.row, 2}, {k.at + first, k.stride}, {s + i * b.stride() + first, b.stride()},
                       {rows, last - first, size / 2}, /*add=*/false);
  });
}

/// y [B, D] = p x where something is seen. p: [B, W] bfloat16; x: rows of the block's keys.
template <class Products>
void key_products(const HeadBlock<Products>& b, const std::uint16_t* p, const std::uint32_t* x, std::int64_t size,
                  float* y) {
  for_groups<Products>(b.count, [&](std::int64_t i, std::int64_t rows) {
    const auto [first, last] = b.keys_of(i, rows);
    const auto pairs = (std::min(last, b.keys) + 1) / 2 - first / 2;
    Products::multiply({p + i * b.stride() + first, b.stride(), 2}, {x + first / 2 * size, size}, {y + i * size, size},
                       {rows, size, pairs}, /*add=*/false);
  });
}

/// Of one head in one sequence.
DistanceScores distances_of(const AttentionCall& call, std::int64_t s, std::int64_t head, bool with_gradients) {
  if (!call.distances.any()) return {};
  return DistanceScores(call.distances, heads_of(call.q, call.k, call.options, s, head, 1), with_gradients, head);
}

void narrow_rows(const float* x, std::int64_t rows, std::int64_t size, const HeadRows<std::uint16_t>& out) {
  for (std::int64_t i = 0; i < rows; ++i) kernels::narrow_row(x + i * size, out.row(i), size);
}

/// Rows of a head, in the VNNI layout, dense; zeros up to whole groups.
template <class Products>
const std::uint32_t* packed(const HeadRows<const std::uint16_t>& x, std::int64_t rows, std::int64_t size,
                            Scratch<std::uint32_t>& out) {
  const std::int64_t all = rounded_up(rows, Products::kGroup) / 2 * size;
  auto* at = out.of(all);
  kernels::pack_vnni(x.at, x.stride, rows, size, at, size);
  std::fill(at + (rows + 1) / 2 * size, at + all, 0u);
  return at;
}
/// Their transpose: rows vnni_stride() apart; zeros up to whole groups, and up to what a product takes of the inner
/// dimension.
template <class Products>
kernels::VnniMatrix packed_transposed(const HeadRows<const std::uint16_t>& x, std::int64_t rows, std::int64_t size,
                                      Scratch<std::uint32_t>& out) {
  const auto columns = rounded_up(rows, Products::kGroup), stride = kernels::vnni_stride(columns);
  const auto all = rounded_up(size, Products::kInner) / 2 * stride;
  auto* at = out.of(all);
  if (columns > kernels::vnni_columns(rows)) std::fill(at, at + all, 0u);
  kernels::pack_vnni_transposed(x.at, x.stride, rows, size, at, stride);
  std::fill(at + size / 2 * stride, at + all, 0u);
  return {at, stride};
}

/// What blocks of queries add to a gradient of keys or values: sums [N, D] of p^T x, x: the queries' rows.
template <class Products>
class KeySums;

template <>
class KeySums<Pairs> {
 public:
  void begin(std::int64_t n, std::int64_t size) {
    n_ = n, size_ = size;
    std::fill_n(sums_.of(n * size), n * size, 0.0f);
  }
  /// p: [B / 2, W] pairs of queries, where something is seen.
  void add(const HeadBlock<Pairs>& b, const std::uint32_t* p, const HeadRows<const std::uint16_t>& x) {
    const auto* rows_of_x = packed<Pairs>(x, b.count, size_, rows_);
    float* sums = sums_.of(n_ * size_) + b.lo * size_;
    for_groups<Pairs>(b.keys, [&](std::int64_t j, std::int64_t rows) {
      const auto [first, last] = b.query_pairs_of(j);
      const auto* from = reinterpret_cast<const std::uint16_t*>(p + first * b.stride() + j);
      kernels::multiply_vnni({from, 2, 2 * b.stride()}, {rows_of_x + first * size_, size_}, {sums + j * size_, size_},
                             {rows, size_, last - first}, /*add=*/true);
    });
  }
  void write(const HeadRows<std::uint16_t>& out) { narrow_rows(sums_.of(n_ * size_), n_, size_, out); }

 private:
  std::int64_t n_ = 0, size_ = 0;
  Scratch<float> sums_;
  Scratch<std::uint32_t> rows_;
};

/// Their transpose: p is laid out as a right operand, and the left one is the smaller to turn round.
template <>
class KeySums<Tiles> {
 public:
  void begin(std::int64_t n, std::int64_t size) {
    n_ = n, size_ = size, stride_ = kernels::vnni_stride(rounded_up(n, Tiles::kGroup));
    std::fill_n(sums_.of(size * stride_), size * stride_, 0.0f);
  }
  void add(const HeadBlock<Tiles>& b, const std::uint32_t* p, const HeadRows<const std::uint16_t>& x) {
    const auto pairs = b.queries() / 2;
    auto* turned = turned_.of(size_ * pairs);
    kernels::pack_vnni_transposed(reinterpret_cast<const std::uint16_t*>(packed<Tiles>(x, b.count, size_, rows_)),
                                  2 * size_, pairs, 2 * size_, turned, pairs);
    float* sums = sums_.of(size_ * stride_) + b.lo;
    for_groups<Tiles>(b.keys, [&](std::int64_t j, std::int64_t) {
      const auto [first, last] = b.query_pairs_of(j);
      kernels::multiply_tiles({reinterpret_cast<const std::uint16_t*>(turned + first), 2 * pairs, 2},
                              {p + first * b.stride() + j, b.stride()}, {sums + j, stride_},
                              {size_, Tiles::kGroup, last - first}, /*add=*/true);
    });
  }
  void write(const HeadRows<std::uint16_t>& out) {
    auto* rows = rows_.of(rounded_up(n_, Tiles::kGroup) * size_);
    kernels::pack_vnni_transposed(reinterpret_cast<const std::uint16_t*>(sums_.of(size_ * stride_)), 2 * stride_, size_,
                                  2 * n_, rows, size_);
    narrow_rows(reinterpret_cast<const float*>(rows), n_, size_, out);
  }

 private:
  std::int64_t n_ = 0, size_ = 0, stride_ = 0;
  Scratch<float> sums_;
  Scratch<std::uint32_t> rows_, turned_;
};

/// Attends for one head of keys in one sequence after another; memory is kept from one to the next.
template <class Products>
class HeadForward {
  using Block = HeadBlock<Products>;

 public:
  HeadForward(const AttentionCall& call, const at::Tensor& out, const at::Tensor& lse)
      : c_(call), out_(out), sums_(lse.mutable_data_ptr<float>()) {}

  void attend(std::int64_t s, std::int64_t head) {
    const auto& o = c_.options;
    const std::int64_t n = o.key_rows->length[s], begin = o.key_rows->begin[s], group = c_.q.size(2);
    const auto keys = packed_transposed<Products>(head_rows(c_.k, begin, head), n, size_, keys_);
    const auto* values = packed<Products>(head_rows(c_.v, begin, head), n, value_size_, values_);
    distances_ = distances_of(c_, s, head, /*with_gradients=*/false);
    for (std::int64_t g = 0; g < group; ++g) {
      for_blocks<Products>(c_, s, head, head * group + g, {}, [&](const Block& b) {
        const auto queries = Products::left(head_rows(c_.q, b.query_row, head, g), b.count, size_, queries_);
        auto* scores = scores_.of(b.queries() * b.stride());
        score_products(b, queries, size_, {keys.at + b.lo, keys.stride}, scores);
        softmax(b, scores);
        weigh(b, values + b.lo / 2 * value_size_, head_rows<std::uint16_t>(out_, b.query_row, head, g));
      });
    }
  }

 private:
  /// Scores become probabilities without their scale, in bfloat16.
  void softmax(const Block& b, float* scores) {
    auto* p = probabilities_.of(b.queries() * b.stride());
    float* scale = scales_.of(b.count);
    for_groups<Products>(b.count, [&](std::int64_t begin, std::int64_t rows) {
      const auto [first, last] = b.keys_of(begin, rows);
      distances_.add(b.first_head, b.begin + begin, rows, scores + begin * b.stride(), b.stride());
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

  void weigh(const Block& b, const std::uint32_t* values, const HeadRows<std::uint16_t>& out) {
    auto* y = result_.of(b.queries() * value_size_);
    const float* scale = scales_.of(b.count);
    key_products(b, probabilities_.of(b.queries() * b.stride()), values, value_size_, y);
    for (std::int64_t i = 0; i < b.count; ++i) kernels::scale_row(y + i * value_size_, scale[i], value_size_);
    narrow_rows(y, b.count, value_size_, out);
  }

  const AttentionCall& c_;
  const at::Tensor& out_;
  float* sums_;
  const std::int64_t size_ = c_.k.size(2), value_size_ = c_.v.size(2);
  const typename Products::Scope scope_{};
  DistanceScores distances_;
  Scratch<std::uint32_t> keys_, values_;
  Scratch<std::uint16_t> queries_, probabilities_;
  Scratch<float> scores_, scales_, result_;
};

/// The gradients of one head of keys in one sequence after another.
template <class Products>
class HeadBackward {
  using Block = HeadBlock<Products>;

 public:
  HeadBackward(const AttentionCall& call, const at::Tensor& g, const at::Tensor& lse, const AttentionGradients& out)
      : c_(call), g_(g), out_(out), sums_(lse.const_data_ptr<float>()) {}

  void attend(std::int64_t s, std::int64_t head) {
    const auto& o = c_.options;
    const std::int64_t n = o.key_rows->length[s], begin = o.key_rows->begin[s], group = c_.q.size(2);
    const auto ks = head_rows(c_.k, begin, head);
    keys_ = packed_transposed<Products>(ks, n, size_, transposed_keys_);
    values_ = packed_transposed<Products>(head_rows(c_.v, begin, head), n, value_size_, transposed_values_);
    key_rows_ = packed<Products>(ks, n, size_, packed_keys_);
    key_sums_.begin(n, size_), value_sums_.begin(n, value_size_);
    std::fill_n(zeros_.of(keys_.stride), keys_.stride, 0.0f);
    distances_ = distances_of(c_, s, head, /*with_gradients=*/true);
    for (std::int64_t h = 0; h < group; ++h) {
      for_blocks<Products>(c_, s, head, head * group + h, out_.bias, [&](const Block& b) {
        const auto qs = head_rows(c_.q, b.query_row, head, h), gs = head_rows(g_, b.query_row, head, h);
        score_gradients(b, qs, gs);
        query_gradient(b, head_rows<std::uint16_t>(out_.q, b.query_row, head, h));
        value_sums_.add(b, probability_pairs_.of(b.queries() / 2 * b.stride()), gs);
        key_sums_.add(b, score_pairs_.of(b.queries() / 2 * b.stride()), qs);
      });
    }
    key_sums_.write(head_rows<std::uint16_t>(out_.k, begin, head));
    value_sums_.write(head_rows<std::uint16_t>(out_.v, begin, head));
    if (distances_.any()) distances_.add_gradients_to(heads_of(out_.q, out_.k, o, s, head, 1), out_.distances);
  }

 private:
  /// Probabilities again and the gradients of the scores, as pairs of queries; the latter also as rows.
  void score_gradients(const Block& b, const HeadRows<const std::uint16_t>& q, const HeadRows<const std::uint16_t>& g) {
    const std::int64_t width = b.stride();
    auto *p = scores_.of(b.queries() * width), *dp = score_gradients_.of(b.queries() * width);
    score_products(b, Products::left(q, b.count, size_, rows_), size_, {keys_.at + b.lo, keys_.stride}, p);
    score_products(b, Products::left(g, b.count, value_size_, rows_), value_size_, {values_.at + b.lo, values_.stride},
                   dp);
    for_groups<Products>(b.count, [&](std::int64_t from, std::int64_t rows) {
      const auto [first, last] = b.keys_of(from, rows);
      distances_.add(b.first_head, b.begin + from, rows, p + from * width, width);
      for (std::int64_t i = from; i < from + rows; ++i) softmax_backward(b, i, last, p + i * width, dp + i * width);
      distances_.add_gradient(b.first_head, b.begin + from, rows, dp + from * width, width);
      narrow(b, from, rows, first, last);
    });
  }

  /// Of query i, in place: products become probabilities, dp the gradient of the scores.
  void softmax_backward(const Block& b, std::int64_t i, std::int64_t last, float* p, float* dp) {
    const auto how = b.row(i, last);
    auto* products = c_.options.softcap > 0 ? products_.of(b.stride()) : nullptr;
    if (products) std::copy(p, p + b.stride(), products);
    if (c_.mask.drops()) drop(dp, dp, i, b, c_.mask);
    const float lse = sums_[b.scores.lse_index(i, c_.k.size(1) * c_.q.size(2))];
    const float dot = kernels::score_probabilities(p, lse, dp, how);
    kernels::score_backward(p, products, dp, dot, how);
    if (c_.mask.drops()) drop(p, p, i, b, c_.mask);
  }

  /// Of queries [from, from + rows) and keys [first, last): to bfloat16; zeros up to a whole group of queries.
  void narrow(const Block& b, std::int64_t from, std::int64_t rows, std::int64_t first, std::int64_t last) {
    const std::int64_t width = b.stride();
    const auto *p = scores_.of(b.queries() * width), *dp = score_gradients_.of(b.queries() * width);
    const auto* zero = zeros_.of(width);
    auto *p_pairs = probability_pairs_.of(b.queries() / 2 * width), *s_pairs = score_pairs_.of(b.queries() / 2 * width);
    auto* s_rows = score_rows_.of(b.queries() * width);
    for (std::int64_t i = from; i < from + Products::kGroup; i += 2) {
      const std::int64_t at = i * width + first, pair = i / 2 * width + first;
      const bool has_even = i < from + rows, has_odd = i + 1 < from + rows;
      kernels::narrow_to_vnni(has_even ? p + at : zero, has_odd ? p + at + width : zero, last - first, p_pairs + pair,
                              nullptr, nullptr);
      kernels::narrow_to_vnni(has_even ? dp + at : zero, has_odd ? dp + at + width : zero, last - first, s_pairs + pair,
                              s_rows + at, s_rows + at + width);
    }
  }

  void query_gradient(const Block& b, const HeadRows<std::uint16_t>& out) {
    auto* dq = query_gradients_.of(b.queries() * size_);
    key_products(b, score_rows_.of(b.queries() * b.stride()), key_rows_ + b.lo / 2 * size_, size_, dq);
    narrow_rows(dq, b.count, size_, out);
  }

  const AttentionCall& c_;
  const at::Tensor& g_;
  const AttentionGradients& out_;
  const float* sums_;
  const std::int64_t size_ = c_.k.size(2), value_size_ = c_.v.size(2);
  kernels::VnniMatrix keys_{}, values_{};  // transposed, of this head
  const std::uint32_t* key_rows_ = nullptr;
  const typename Products::Scope scope_{};
  DistanceScores distances_;
  KeySums<Products> key_sums_, value_sums_;
  Scratch<std::uint32_t> packed_keys_, transposed_keys_, transposed_values_, probability_pairs_, score_pairs_;
  Scratch<std::uint16_t> rows_, score_rows_;
  Scratch<float> scores_, products_, score_gradients_, query_gradients_, zeros_;
};

}  // namespace

bool attends_in_bf16(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o) {
  const auto fits = [](const at::Tensor& t) {
    return has_kernels(t) && t.scalar_type() == at::kBFloat16 && t.size(-1) % 16 == 0 && t.size(-1) > 0;
  };
  const bool one_by_one = o.query_rows->longest() <= 1 && o.key_rows->longest() > 1;
  return fits(q) && fits(k) && fits(v) && !one_by_one && o.key_rows->count() * k.size(1) >= at::get_num_threads() &&
         kernels::has_bf16_dot();
}

void attend_bf16(const AttentionCall& call, const at::Tensor& out, const at::Tensor& lse) {
  if (kernels::has_bf16_tiles())
    for_heads<HeadForward<Tiles>>(call, out, lse);
  else
    for_heads<HeadForward<Pairs>>(call, out, lse);
}

void attend_bf16_backward(const AttentionCall& call, const at::Tensor& g, const at::Tensor& lse,
                          const AttentionGradients& out) {
  if (kernels::has_bf16_tiles())
    for_heads<HeadBackward<Tiles>>(call, g, lse, out);
  else
    for_heads<HeadBackward<Pairs>>(call, g, lse, out);
}

}  // namespace tessera::nn
