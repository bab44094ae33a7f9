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
  bool blind_sees_past = false;
  const std::uint8_t* visible = nullptr;  // null: all
};

/// Products s become probabilities in place, zeros where keys do not count; returns log(sum(exp(score))). No key
/// counts: evenly over all n (or over [first, last), with blind_sees_past), and infinity.
float score_softmax(float* s, const ScoreRow& row);
/// The probabilities again, from the products and the number that score_softmax returned.
void score_probabilities(float* s, float lse, const ScoreRow& row);
/// dp (gradient of the probabilities) becomes the gradient of the products, in place. products: read with softcap only.
void score_backward(const float* p, const float* products, float* dp, const ScoreRow& row);

}  // namespace tessera::nn::kernels
