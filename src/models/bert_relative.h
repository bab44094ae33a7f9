#pragma once
// Attention with relative positions (Shaw et al. 2018; Huang et al. 2020) as BERT's position_embedding_type
// "relative_key" and "relative_key_query" have it.
#include <ATen/core/Tensor.h>

#include "nn/ops/attention.h"
#include "tessera/nn/embedding.h"

namespace tessera::models {

/// distances: a table [2 P - 1, D], row i - j + P - 1 for query i and key j of a sequence. The score is scale * (q k +
/// q row + k row), without the last term unless with_keys. q, k, v: [T, H * D]; queries and keys are the same tokens.
at::Tensor relative_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, nn::Embedding& distances,
                              bool with_keys, const nn::AttentionOptions& options);

}  // namespace tessera::models
