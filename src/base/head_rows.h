#pragma once
// How many rows and classes the loss of a language model takes at a time (nn/ops/label_scores.h); a rank's plan of its
// memory counts them, too.
#include <algorithm>
#include <cstdint>

namespace tessera {

inline constexpr std::int64_t kClassesAtOnce = 1024;
inline constexpr std::int64_t kFewestHeadRows = 128;  // reading the weight costs little beside multiplying it
inline constexpr std::int64_t kHeadBytes = 16 << 20;

/// Rows that pass over the head's weight together, where their logits are not kept.
inline std::int64_t rows_in_one_pass(std::int64_t dim) {
  constexpr std::int64_t kMost = 512;
  return std::clamp(kHeadBytes / (8 * dim + 4 * kClassesAtOnce), kFewestHeadRows, kMost);
}

/// Rows whose logits are kept in memory of their own.
inline std::int64_t rows_of_a_piece(std::int64_t dim, std::int64_t classes, std::int64_t element_size) {
  return std::max(kFewestHeadRows, kHeadBytes / (8 * dim + classes * element_size));
}

}  // namespace tessera
