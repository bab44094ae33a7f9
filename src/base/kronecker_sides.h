#pragma once
// How LoKr splits a side of a matrix that is a Kronecker product.
#include <cstdint>
#include <utility>

namespace tessera {

/// LyCORIS' factorization(): two factors of `dimension`, as near to each other as may be (the smaller first), or
/// `factor` and the other where it divides, else the first at most so large. factor -1: any.
inline std::pair<std::int64_t, std::int64_t> kronecker_sides(std::int64_t dimension, std::int64_t factor) {
  if (factor > 0 && dimension % factor == 0) return {factor, dimension / factor};
  if (factor == -1) factor = dimension;
  std::int64_t m = 1, n = dimension, length = m + n;
  while (m < n) {
    auto next = m + 1;
    while (dimension % next != 0) ++next;
    const auto other = dimension / next;
    if (next + other > length || next > factor) break;
    m = next;
    n = other;
    length = m + n;
  }
  if (m > n) std::swap(m, n);
  return {m, n};
}

}  // namespace tessera
