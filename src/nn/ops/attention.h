#pragma once
// Attention of a query's heads over the keys of its sequence. Scores are made for a block of queries at a time and made
// again in backward, so that nothing of size length x length is ever stored (the idea of Dao et al. 2022,
// FlashAttention).
#include <ATen/core/Tensor.h>

#include <memory>

#include "nn/ops/distance_scores.h"
#include "nn/ops/sequence_rows.h"

namespace tessera::nn {

struct AttentionOptions {
  double scale = 1.0;       // of q k^T
  bool causal = false;      // query i of a sequence, at the place i + (its keys - its queries), sees no key behind it
  std::int64_t window = 0;  // a causal query sees this many keys, its own included; 0: all before it
  double softcap = 0;       // scores become softcap * tanh(score / softcap); 0: as they are
  double dropout = 0;       // of the probabilities
  /// [key tokens] uint8, 1: visible; undefined: all. A query that sees no key attends to all keys of its sequence
  /// evenly (what adding the smallest finite number to every score does), or to those before it.
  at::Tensor key_visible;
  bool blind_query_sees_past = false;
  bool hides_queries = false;  // a query that is no visible key attends to all keys evenly, too, whatever its scores
  /// Linear biases (Press et al. 2022): bias_scale * slopes [KV * G] * key_position [key tokens], both float32, is
  /// added to the scores after `scale`; undefined: none. bias_in_bfloat16 rounds both and their product.
  at::Tensor slopes, key_position;
  double bias_scale = 1.0;
  bool bias_in_bfloat16 = false;
  std::shared_ptr<const SequenceRows> query_rows, key_rows;  // same count
};

/// What scores depend on beside queries and keys; gradients reach it. At most one of the two.
struct ScoreTerms {
  /// A number for each distance of a key j and a query i of a sequence: [KV * G, M + N - 1], element j - i + M - 1; M,
  /// N: the most queries and keys that a sequence has. Added after `scale`; in bfloat16 where q is, as upstream's T5
  /// does.
  at::Tensor bias = {};
  DistanceTables distances = {};  // added before `scale`; queries and keys are the same tokens, and G is 1
};

/// q: [query tokens, KV, G, D], head h = kv * G + g reads the keys and values of kv; k, v: [key tokens, KV, D]; any
/// strides but the last, which is 1. Result: [query tokens, KV * G * D]. Statistics in float32; besides q, k, v and the
/// terms only one number for each query and head is kept for backward.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                     const ScoreTerms& terms = {});

/// [tokens, heads * D] as the q of `heads` heads with keys of their own, and as their k or v.
inline at::Tensor query_heads(const at::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), heads, 1, -1});
}
inline at::Tensor key_heads(const at::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), heads, -1});
}

}  // namespace tessera::nn
