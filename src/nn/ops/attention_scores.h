#pragma once
// What both forms of attention share: which scores a block of queries has, and their masks.
#include <algorithm>

#include "nn/kernels/score_kernels.h"
#include "nn/ops/attention.h"
#include "nn/ops/dropout_mask.h"

namespace tessera::nn {

/// Shapes as in attention(). bias: float32, contiguous, or undefined.
struct AttentionCall {
  const at::Tensor &q, &k, &v;
  const AttentionOptions& options;
  const DropoutMask& mask;
  at::Tensor bias;
  const DistanceTables& distances;
};
struct AttentionGradients {
  at::Tensor q, k, v;
  at::Tensor bias = {};           // float32; undefined: not wanted
  DistanceTables distances = {};  // the same of either
};

/// Some heads' queries [begin, begin + count) of a sequence and the keys [lo, hi) that any of them sees.
struct QueryBlock {
  std::int64_t first_head = 0, kv_heads = 1;  // of keys
  std::int64_t first_query_head = 0;
  std::int64_t begin;
  std::int64_t query_row, key_row;  // of query `begin` and key `lo` in the tensors
  std::int64_t count, keys;
  std::int64_t place;  // of query `begin` among the keys from `lo` on
  std::int64_t lo, total_keys;
};

/// Queries [begin, begin + count) of a sequence; which heads is left open. unit: keys that no query sees are left out
/// at the front by so many at a time.
inline QueryBlock block_of(const AttentionOptions& o, std::int64_t sequence, std::int64_t begin, std::int64_t count,
                           std::int64_t unit) {
  const auto s = static_cast<std::size_t>(sequence);
  const std::int64_t n = o.key_rows->length[s], place = begin + n - o.query_rows->length[s];
  std::int64_t lo = 0, hi = n;  // a query that sees nothing reads every key
  if (o.causal && !o.key_visible.defined()) {
    hi = place + count;
    if (o.window > 0) lo = std::max<std::int64_t>(0, place - o.window + 1) / unit * unit;
  }
  return {.begin = begin,
          .query_row = o.query_rows->begin[s] + begin,
          .key_row = o.key_rows->begin[s] + lo,
          .count = count,
          .keys = hi - lo,
          .place = place - lo,
          .lo = lo,
          .total_keys = n};
}

class Scores {
 public:
  /// bias_gradient: what rows of scores add to, in backward, each head in one thread; or undefined.
  Scores(const AttentionCall& call, const QueryBlock& block, const at::Tensor& bias_gradient = {})
      : options_(call.options), block_(block) {
    const auto& o = options_;
    row_.n = block.keys;
    row_.scale = static_cast<float>(o.scale);
    row_.softcap = static_cast<float>(o.softcap);
    row_.blind_sees_past = o.blind_query_sees_past;
    if (o.slopes.defined()) {
      slopes_ = o.slopes.const_data_ptr<float>();
      row_.bias_scale = static_cast<float>(o.bias_scale);
      row_.bias_in_bfloat16 = o.bias_in_bfloat16;
      row_.key_position = o.key_position.const_data_ptr<float>() + block.key_row;
    }
    if (o.key_visible.defined()) row_.visible = o.key_visible.const_data_ptr<std::uint8_t>() + block.key_row;
    if (call.bias.defined()) {
      bias_ = call.bias.const_data_ptr<float>();
      row_.sums_in_bfloat16 = call.q.scalar_type() == at::kBFloat16;
      bias_stride_ = call.bias.size(1);
      same_place_ = o.query_rows->longest() - 1;
    }
    if (bias_gradient.defined()) bias_gradient_ = bias_gradient.mutable_data_ptr<float>();
  }

  /// Row r of the block's [H * B, N] scores.
  kernels::ScoreRow row(std::int64_t r) const {
    auto row = row_;
    const std::int64_t i = r % block_.count, head = block_.first_query_head + r / block_.count;
    row.last = block_.keys;
    if (options_.causal) {
      const std::int64_t place = block_.place + i;
      row.last = place + 1;
      if (options_.window > 0) row.first = std::max<std::int64_t>(0, place - options_.window + 1);
    }
    if (slopes_) row.slope = slopes_[head];
    if (bias_) {
      const auto at = head * bias_stride_ + same_place_ - (block_.begin + i) + block_.lo;
      row.bias = bias_ + at;
      if (bias_gradient_) row.bias_gradient = bias_gradient_ + at;
    }
    // A query that may be hidden is one of the keys, and the block has all of these.
    row.hidden = options_.hides_queries && row.visible && !row.visible[block_.place + i];
    return row;
  }
  /// Where row r's log-sum lies in the [query tokens, H] tensor.
  std::int64_t lse_index(std::int64_t r, std::int64_t heads) const {
    return (block_.query_row + r % block_.count) * heads + block_.first_query_head + r / block_.count;
  }

 private:
  const AttentionOptions& options_;
  const QueryBlock& block_;
  kernels::ScoreRow row_;
  const float* slopes_ = nullptr;
  const float* bias_ = nullptr;
  float* bias_gradient_ = nullptr;
  std::int64_t bias_stride_ = 0, same_place_ = 0;  // of key 0 and query 0
};

/// Some heads' queries and keys of one sequence, in place. Each head of keys has one of queries.
inline SequenceHeads heads_of(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& o,
                              std::int64_t sequence, std::int64_t first_head, std::int64_t heads) {
  const auto rows = [&](const at::Tensor& x, const SequenceRows& places) {
    const auto i = static_cast<std::size_t>(sequence);
    return x.narrow(0, places.begin[i], places.length[i]).narrow(1, first_head, heads).transpose(0, 1);
  };
  return {rows(q.select(2, 0), *o.query_rows), rows(k, *o.key_rows)};
}

/// Row r of the block's [H * B, N] probabilities, masked.
inline void drop(const float* from, float* to, std::int64_t r, const QueryBlock& b, const DropoutMask& mask) {
  const auto first = head_offset(b.first_query_head + r / b.count) + static_cast<std::uint32_t>(b.lo);
  kernels::dropout(from, to, b.keys, first, mask.row(b.query_row + r % b.count));
}

}  // namespace tessera::nn
