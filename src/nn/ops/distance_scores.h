#pragma once
// The scores of disentangled attention that depend on the distance of two tokens (He et al. 2021).
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::nn {

/// Query i and key j of a sequence have the score q_i . with_query[r] + k_j . with_key[r] beside q_i . k_j, where r is
/// the row of the distance i - j. Either table may be undefined.
struct DistanceTables {
  at::Tensor with_query, with_key;  // [R, H * D]
  /// Of the distances -(L - 1) .. L - 1, L: the longest sequence.
  std::shared_ptr<const std::vector<std::int64_t>> rows = {};

  bool any() const { return with_query.defined() || with_key.defined(); }
  /// Of the distances of a sequence of `length` tokens, from -(length - 1) on.
  const std::int64_t* rows_of(std::int64_t length) const {
    return rows->data() + (static_cast<std::int64_t>(rows->size()) / 2 - (length - 1));
  }
};

/// One sequence's queries and keys, [H, N, D].
struct SequenceHeads {
  at::Tensor q, k;
};

/// p += these scores. p: [H, N, N], contiguous, of the tables' dtype.
void add_distance_scores(const at::Tensor& p, const SequenceHeads& x, const DistanceTables& tables);

/// The gradients of one sequence are added to those of its queries and keys, gx, and to those of the tables, float32.
/// ds: the scores' gradient, [H, N, N]. Bits depend on nothing but the arguments.
void add_distance_gradients(const at::Tensor& ds, const SequenceHeads& x, const DistanceTables& tables,
                            const SequenceHeads& gx, const DistanceTables& gtables);

}  // namespace tessera::nn
