#pragma once
// Whether a layer's weight gains a matrix B A [out, in] as a matrix or as its factors A [R, in] and B [out, R].
#include <cstdint>

namespace tessera {

struct ProductSize {
  std::int64_t tokens, in, out;
};

/// Multiplications of a step: of the factors forward, for x's gradient and for their own; or of making the matrix,
/// again for backward, its gradient, and theirs from that. The layer's own products are the same.
inline bool factors_are_less_work(const ProductSize& s, std::int64_t rank) {
  const std::int64_t by_factors = 3 * s.tokens * rank * (s.in + s.out);
  const std::int64_t by_matrix = s.in * s.out * (4 * rank + s.tokens);
  return by_factors < by_matrix;
}

}  // namespace tessera
