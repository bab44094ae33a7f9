#include "models/relative_position.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace tessera::models {
namespace {

std::int64_t bucket(std::int64_t relative, bool bidirectional, std::int64_t num_buckets, std::int64_t max_distance) {
  std::int64_t offset = 0;
  if (bidirectional) {
    num_buckets /= 2;
    if (relative > 0) offset = num_buckets;
    relative = std::abs(relative);
  } else {
    relative = -std::min<std::int64_t>(relative, 0);
  }
  const std::int64_t max_exact = num_buckets / 2;
  if (relative < max_exact) return offset + relative;
  // In float32 and in this order of operations, because the truncation falls on upstream's side only then.
  const float ratio = std::log(static_cast<float>(relative) / static_cast<float>(max_exact)) /
                      static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(max_exact)));
  const auto large = max_exact + static_cast<std::int64_t>(ratio * static_cast<float>(num_buckets - max_exact));
  return offset + std::min(large, num_buckets - 1);
}

}  // namespace

at::Tensor relative_position_buckets(std::int64_t first_query, std::int64_t queries, std::int64_t keys,
                                     bool bidirectional, std::int64_t num_buckets, std::int64_t max_distance) {
  const auto out = at::empty({queries, keys}, at::TensorOptions().dtype(at::kLong));
  auto* p = out.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < queries; ++i) {
    for (std::int64_t j = 0; j < keys; ++j) {
      *p++ = bucket(j - (first_query + i), bidirectional, num_buckets, max_distance);
    }
  }
  return out;
}

}  // namespace tessera::models
