#pragma once
// Attention of bfloat16 by nn/kernels/bf16_tiles.h or bf16_dot.h: a head's keys and values are packed once, and
// a block of queries makes its scores, in float32, where the second cache holds them. General matrix products as narrow
// as a head take two to four times as long.
#include <ATen/core/Tensor.h>

#include "nn/ops/attention_scores.h"

namespace tessera::nn {

/// Whether what follows applies: the processor, dtype, sizes; sequences have more than one query, for which packing
/// their keys pays, and there are heads for all threads. Shapes as in attention().
bool attends_in_bf16(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o);

/// out: [query tokens, KV, G, D]; lse: [query tokens, KV * G], float32, log-sums for backward.
void attend_bf16(const AttentionCall& call, const at::Tensor& out, const at::Tensor& lse);

/// g: gradient of `out`. Gradients are dense; every row of a sequence is written.
void attend_bf16_backward(const AttentionCall& call, const at::Tensor& g, const at::Tensor& lse,
                          const AttentionGradients& out);

}  // namespace tessera::nn
