#pragma once
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace tessera::chat {

/// Equal items keep their order. A contradictory order (NaN) still gives a permutation, which std::sort does not
/// promise, and `less` may throw.
template <typename T, typename Less>
void merge_sort(std::vector<T>& items, const Less& less) {
  const std::size_t count = items.size();
  std::vector<T> merged(count);
  for (std::size_t width = 1; width < count; width *= 2) {
    for (std::size_t begin = 0; begin < count; begin += 2 * width) {
      const std::size_t middle = std::min(begin + width, count), end = std::min(begin + 2 * width, count);
      std::size_t left = begin, right = middle;
      for (std::size_t out = begin; out < end; ++out) {
        const bool take_right = left == middle || (right < end && less(items[right], items[left]));
        merged[out] = std::move(items[take_right ? right++ : left++]);
      }
    }
    items.swap(merged);
  }
}

}  // namespace tessera::chat
