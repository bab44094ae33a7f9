#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::models {

/// T5's buckets of the distance key - query (Raffel et al. 2020; transformers' _relative_position_bucket). Queries are
/// positions [first_query, first_query + queries), keys [0, keys). Returns [queries, keys] int64.
at::Tensor relative_position_buckets(std::int64_t first_query, std::int64_t queries, std::int64_t keys,
                                     bool bidirectional, std::int64_t num_buckets, std::int64_t max_distance);

}  // namespace tessera::models
