#include "models/relative_position.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/where.h>

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
  const auto out = at::empty({queries + keys - 1}, at::TensorOptions().dtype(at::kLong));
  auto* p = out.mutable_data_ptr<std::int64_t>();
  const std::int64_t least = -(first_query + queries - 1);
  for (std::int64_t distance = least; distance < least + out.numel(); ++distance)
    *p++ = bucket(distance, bidirectional, num_buckets, max_distance);
  return out;
}

std::vector<std::int64_t> distance_rows(std::int64_t longest, std::int64_t span, std::int64_t buckets,
                                        std::int64_t max_distance) {
  auto rows = at::arange(1 - longest, longest, at::kLong);
  if (const std::int64_t half = buckets / 2; half > 0) {
    // libtorch's own logarithm and upstream's order of operations, because ceil() falls on upstream's side only then.
    const auto distance = rows.abs();
    const auto base = at::scalar_tensor(static_cast<double>(max_distance - 1) / static_cast<double>(half), at::kFloat);
    const auto far = at::ceil(at::log(distance.clamp_min(half - 1) / half) / at::log(base) * (half - 1)) + half;
    rows = at::where(distance.le(half), rows, (far * at::sign(rows)).to(at::kLong));
  }
  rows = (rows + span).clamp(0, 2 * span - 1);
  const auto* data = rows.const_data_ptr<std::int64_t>();
  return {data, data + rows.numel()};
}

}  // namespace tessera::models
