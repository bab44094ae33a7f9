#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "nn/ops/distance_scores.h"
#include "nn/ops/sequence_rows.h"

namespace tessera::nn {

struct AttentionOptions {
  std::int64_t num_heads = 1;
  double scale = 1.0;    // of q k^T
  bool causal = false;   // query i of a sequence sees keys up to i + (its keys - its queries)
  double dropout = 0.0;  // of the probabilities
  /// [key tokens] uint8, 1: visible; undefined: all. A query that sees no key attends to all of them evenly (what
  /// adding the smallest finite number to every score does).
  at::Tensor key_visible;
  bool hides_queries = false;  // a query that is no visible key attends to all keys evenly, too
  std::shared_ptr<const SequenceRows> query_rows, key_rows;  // same count
};

/// softmax(scale q k^T + bias) v within each sequence. q: [query tokens, H * D], k, v: [key tokens, H * D]; bias: [H,
/// longest query, longest key] for every sequence alike, or undefined. Statistics in float32; probabilities are kept
/// for backward, masks are not.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                     const AttentionOptions& options);

/// The same with scores of distances, softmax(scale (q k^T + distances)) v. Queries and keys are the same tokens.
at::Tensor disentangled_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const DistanceTables& distances, const AttentionOptions& options);

}  // namespace tessera::nn
