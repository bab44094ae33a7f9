#pragma once
// One row of attention scores (one query and head), float32: from products q k^T to probabilities and back.
#include <cstdint>

namespace tessera::nn::kernels {

/// How products become scores, and which keys of the row count: [first, last) of n, all pointers at key 0 of the row.
struct ScoreRow {
  std::int64_t n = 0, first = 0, last = 0;
  float scale = 1.0f, softcap = 0.0f;
  float slope = 0.0f, bias_scale = 1.0f;
  const float* key_position = nullptr;  // null: no linear bias
  bool bias_in_bfloat16 = false;
  const float* bias = nullptr;     // added after `scale`
  bool sums_in_bfloat16 = false;   // which rounds the scores before and after it
  float* bias_gradient = nullptr;  // its gradient is added here, in backward
  bool blind_sees_past = false;
  bool hidden = false;                    // the query: it sees no key, and its scores have no gradient
  const std::uint8_t* visible = nullptr;  // null: all
};

/// What a row's exponentials lack of probabilities, and log(sum(exp(score))).
struct RowSoftmax {
  float scale, lse;
};

/// Products s become exponentials in place, zeros where keys do not count; probabilities are `scale` times those. No
/// key counts: evenly over all n (or over [first, last), with blind_sees_past), and lse is infinity.
RowSoftmax score_softmax(float* s, const ScoreRow& row);
/// Products become the probabilities again, from the lse that score_softmax gave. Returns sum(p * dp).
float score_probabilities(float* s, float lse, const float* dp, const ScoreRow& row);
/// dp (gradient of the probabilities) becomes the gradient of the products, in place. dot: sum(p * dp). products: read
/// with softcap only.
void score_backward(const float* p, const float* products, float* dp, float dot, const ScoreRow& row);

/// to[j] += from[-j].
void add_reversed(const float* from, float* to, std::int64_t n);
/// to[j] += from[places[j]].
void add_gathered(const float* from, const std::int32_t* places, float* to, std::int64_t n);
/// to [rows, columns], rows `stride` apart, += a matrix whose columns from[c] [rows] lie anywhere; and the other way.
void add_columns(const float* const* from, std::int64_t columns, std::int64_t rows, float* to, std::int64_t stride);
void add_to_columns(const float* from, std::int64_t stride, std::int64_t rows, float* const* to, std::int64_t columns);

}  // namespace tessera::nn::kernels
