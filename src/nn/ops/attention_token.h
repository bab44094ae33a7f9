#pragma once
// Attention of one new token a sequence over cached keys, as decoding needs it: without autograd, and without copies
// of the cache.
#include "nn/ops/attention_scores.h"

namespace tessera::nn {

/// Whether attend_tokens() takes it: at most one query a sequence, in float32 or bfloat16, without dropout.
bool attends_tokens(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o);

/// Without distances but a bias. out: [query tokens, KV, G, D], contiguous. Scores and probabilities are float32, not
/// rounded.
void attend_tokens(const AttentionCall& call, const at::Tensor& out);

}  // namespace tessera::nn
