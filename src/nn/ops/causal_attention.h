#pragma once
// Attention of decoders, for long rows: scores are made for a block of queries at a time and made again in backward, so
// that nothing of size length x length is ever stored (the idea of Dao et al. 2022, FlashAttention).
#include <ATen/core/Tensor.h>

#include <memory>

#include "nn/ops/sequence_rows.h"

namespace tessera::nn {

struct CausalAttentionOptions {
  double scale = 1.0;       // of q k^T
  std::int64_t window = 0;  // a query sees this many keys, its own included; 0: all before it
  double softcap = 0;       // scores become softcap * tanh(score / softcap); 0: as they are
  double dropout = 0;       // of the probabilities
  /// [key tokens] uint8, 1: visible; undefined: all. A query that sees no key attends to all keys of its sequence
  /// evenly (what adding the smallest finite number to every score does), or to those before it.
  at::Tensor key_visible;
  bool blind_query_sees_past = false;
  /// Linear biases (Press et al. 2022): bias_scale * slopes [KV * G] * key_position [key tokens], both float32, is
  /// added to the scores after `scale`; undefined: none. bias_in_bfloat16 rounds both and their product.
  at::Tensor slopes, key_position;
  double bias_scale = 1.0;
  bool bias_in_bfloat16 = false;
  /// Query i of a sequence is at the place i + (its keys - its queries) among its keys. Same count.
  std::shared_ptr<const SequenceRows> query_rows, key_rows;
};

/// q: [query tokens, KV, G, D], head h = kv * G + g reads the keys and values of kv; k, v: [key tokens, KV, D]; any
/// strides but the last, which is 1. Result: [query tokens, KV * G * D]. Statistics in float32; besides q, k and v only
/// one number for each query and head is kept for backward.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const CausalAttentionOptions& options);

}  // namespace tessera::nn
