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
  /// products [N] of a query += its scores.
  void add(std::int64_t head, std::int64_t query, float* products) const;
  /// g: the gradient of add()'s result. One thread a head.
  void add_gradient(std::int64_t head, std::int64_t query, const float* g);
  /// What add_gradient() took is added to the gradients of queries and keys, gx (as x is), and to those of the tables,
  /// float32, where these are wanted.
  void add_gradients_to(const SequenceHeads& gx, const DistanceTables& gtables) const;

 private:
  /// Products of tokens with the rows that the sequence uses, and their gradients, in float32.
  struct Products {
    at::Tensor values, gradients;  // [H, N, W] of queries, [H, W, N] of keys
    const float* read(std::int64_t first) const { return values.const_data_ptr<float>() + first; }
    float* write(std::int64_t first) const { return gradients.mutable_data_ptr<float>() + first; }
  };
  /// Distances [begin, end) of the same row (step 0), or of one row after another (step 1).
  struct Segment {
    std::int64_t begin, end, row, step;
  };
  /// Keys [first, first + count) of a query, the row of the first; those after it have the same, or the one before.
  struct Keys {
    std::int64_t first, count, row;
    bool same_row;
  };
  template <class Body>
  void for_keys(std::int64_t query, const Body& body) const;
  at::Tensor part_of(const at::Tensor& table) const;
  std::int64_t offset(std::int64_t head) const { return (head - first_head_) * length_ * width_; }

  SequenceHeads x_;
  at::Tensor with_query_, with_key_;  // [H, W, D]
  Products query_, key_;
  std::vector<Segment> segments_;
  std::int64_t first_head_ = 0, heads_ = 0, length_ = 0, size_ = 0, first_row_ = 0, width_ = 0;
};

}  // namespace tessera::nn
