#pragma once
// The scores of disentangled attention that depend on the distance of two tokens (He et al. 2021).
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
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

/// Queries and keys of some heads in one sequence, [H, N, D].
struct SequenceHeads {
  at::Tensor q, k;
};

/// These scores of some heads in one sequence. Rows hold all keys of the sequence. Bits depend on nothing but the
/// arguments.
class DistanceScores {
 public:
  DistanceScores() = default;  // there are none
  /// x: of the heads from first_head on, of the tables' dtype. with_gradients: add_gradient() will be called.
  DistanceScores(const DistanceTables& tables, const SequenceHeads& x, bool with_gradients,
                 std::int64_t first_head = 0);

  bool any() const { return length_ > 0; }
  /// products [count, N] of the queries from `query` on, rows `stride` apart, += their scores. Some queries together
  /// are faster: a key's scores with them lie side by side.
  void add(std::int64_t head, std::int64_t query, std::int64_t count, float* products, std::int64_t stride) const;
  /// g: the gradient of add()'s result. One thread a head.
  void add_gradient(std::int64_t head, std::int64_t query, std::int64_t count, const float* g, std::int64_t stride);
  /// What add_gradient() took is added to the gradients of queries and keys, gx (as x is), and to those of the tables,
  /// float32, where these are wanted.
  void add_gradients_to(const SequenceHeads& gx, const DistanceTables& gtables) const;

 private:
  /// Products of tokens with the rows that the sequence uses, and their gradients, float32 [H, N, W].
  struct Products {
    at::Tensor values, gradients;
    const float* read = nullptr;  // where they lie; null: there are none
    float* write = nullptr;
  };

  at::Tensor part_of(const at::Tensor& table) const;
  /// Where a token's products begin.
  std::int64_t offset(std::int64_t head, std::int64_t token) const {
    return ((head - first_head_) * length_ + token) * width_;
  }
  /// The row of a query's product with key 0; those of keys 1, 2, .. stand behind it.
  const std::int32_t* rows_of_query(std::int64_t query) const { return rows_.data() + (length_ - 1 - query); }
  /// Whether queries [query, query + count) have one row after another at this key.
  bool follow(std::int64_t query, std::int64_t count, std::int64_t key) const {
    return query - key >= near_begin_ && query + count - key <= near_end_;
  }
  /// The keys [first, end) of a query whose rows follow one another, backwards.
  std::pair<std::int64_t, std::int64_t> near_keys(std::int64_t query) const {
    const auto first = std::clamp<std::int64_t>(query - near_end_ + 1, 0, length_);
    return {first, std::clamp<std::int64_t>(query - near_begin_ + 1, first, length_)};
  }

  SequenceHeads x_;
  at::Tensor with_query_, with_key_;  // [H, W, D]
  Products query_, key_;
  std::vector<std::int32_t> rows_;  // of W, of distances length - 1 .. -(length - 1)
  /// The longest range of distances that have one row after another.
  std::int64_t near_begin_ = 0, near_end_ = 0;
  std::int64_t first_head_ = 0, heads_ = 0, length_ = 0, size_ = 0, first_row_ = 0, width_ = 0;
};

}  // namespace tessera::nn
