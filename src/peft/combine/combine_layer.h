#pragma once
// One layer of a combination: the factors of several adapters become those of one.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "peft/combine/task_arithmetic.h"

namespace tessera::peft {

/// An adapter's share in a layer, float32.
struct LayerShare {
  at::Tensor a, b;       // [rank, in], [out, rank]
  double weight = 1.0;   // the user's
  double scaling = 1.0;  // the adapter's: TIES elects signs by scaled products
  std::string key;       // of its random draws
};

struct Factors {
  at::Tensor a, b;  // contiguous
};

/// A and B each by themselves, both with the root of the weight, A with its sign. Ranks must be equal.
Factors combine_factors(const std::vector<LayerShare>& shares, const TaskRule& rule);
/// [A1; A2; ...], [B1, B2, ...]; what is left of `rank` is zero.
Factors concatenate_factors(const std::vector<LayerShare>& shares, std::int64_t rank);
/// The products, combined and cut to their largest `rank` singular values: U S in B, V' in A. clamp: a quantile of the
/// values of both that none exceeds afterwards.
Factors decompose_products(const std::vector<LayerShare>& shares, const TaskRule& rule, std::int64_t rank,
                           std::optional<double> clamp);

}  // namespace tessera::peft
