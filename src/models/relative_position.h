#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::models {

/// T5's buckets of the distance key - query (Raffel et al. 2020; transformers' _relative_position_bucket). Queries are
/// positions [first_query, first_query + queries), keys [0, keys). Returns [queries + keys - 1] int64: of key 0 and the
/// last query first, of the last key and query 0 last.
at::Tensor relative_position_buckets(std::int64_t first_query, std::int64_t queries, std::int64_t keys,
                                     bool bidirectional, std::int64_t num_buckets, std::int64_t max_distance);

/// DeBERTa's rows of the distances query - key (He et al. 2021), from -(longest - 1) to longest - 1, in a table with
/// `span` rows in each direction. buckets: near distances have a row each, farther ones share rows by their logarithm
/// (transformers' make_log_bucket_position); 0: all have one.
std::vector<std::int64_t> distance_rows(std::int64_t longest, std::int64_t span, std::int64_t buckets,
                                        std::int64_t max_distance);

}  // namespace tessera::models
