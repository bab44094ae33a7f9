#pragma once
// What both forms of causal attention share: which scores a block of queries has, and their masks.
#include <algorithm>

#include "nn/kernels/score_kernels.h"
#include "nn/ops/causal_attention.h"
#include "nn/ops/dropout_mask.h"

namespace tessera::nn {

/// Shapes as in causal_attention().
struct CausalAttentionCall {
  const at::Tensor &q, &k, &v;
  const CausalAttentionOptions& options;
  const DropoutMask& mask;
};
struct CausalAttentionGradients {
  at::Tensor q, k, v;
};

/// Some heads' queries [begin, begin + count) of a sequence and the keys [lo, hi) that any of them sees.
struct QueryBlock {
  std::int64_t first_head, kv_heads;  // of keys
  std::int64_t first_query_head;
  std::int64_t query_row, key_row;  // of query `begin` and key `lo` in the tensors
  std::int64_t count, keys;
  std::int64_t place;  // of query `begin` among the keys from `lo` on
  std::int64_t lo, total_keys;
};

class Scores {
 public:
  Scores(const CausalAttentionOptions& o, const QueryBlock& block) : options_(o), block_(block) {
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
  }

  /// Row r of the block's [H * B, N] scores.
  kernels::ScoreRow row(std::int64_t r) const {
    auto row = row_;
    const std::int64_t place = block_.place + r % block_.count;
    row.last = place + 1;
    row.first = options_.window > 0 ? std::max<std::int64_t>(0, place - options_.window + 1) : 0;
    if (slopes_) row.slope = slopes_[block_.first_query_head + r / block_.count];
    return row;
  }
  /// Where row r's log-sum lies in the [query tokens, H] tensor.
  std::int64_t lse_index(std::int64_t r, std::int64_t heads) const {
    return (block_.query_row + r % block_.count) * heads + block_.first_query_head + r / block_.count;
  }

 private:
  const CausalAttentionOptions& options_;
  const QueryBlock& block_;
  kernels::ScoreRow row_;
  const float* slopes_ = nullptr;
};

/// Row r of the block's [H * B, N] probabilities, masked.
inline void drop(const float* from, float* to, std::int64_t r, const QueryBlock& b, const DropoutMask& mask) {
  const auto first = head_offset(b.first_query_head + r / b.count) + static_cast<std::uint32_t>(b.lo);
  kernels::dropout(from, to, b.keys, first, mask.row(b.query_row + r % b.count));
}

}  // namespace tessera::nn
