#pragma once
// Cached keys and values of a batch in another order of its rows, as beam search asks for after each token.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::models {

class CacheOrder {
 public:
  /// order: [new rows] int64, of each the old row. A cache has `rows` times `capacity` places, of which each row has
  /// filled at most the first `used`.
  CacheOrder(const at::Tensor& order, std::int64_t rows, std::int64_t capacity, std::int64_t used);
  /// store: [rows * capacity, width], or undefined. Becomes [new rows * capacity, width]; what is behind `used` is left
  /// open. spare: memory for that, of earlier calls or undefined; then the store's old one.
  void apply(at::Tensor& store, at::Tensor& spare) const;

 private:
  at::Tensor order_;  // on the host
  std::int64_t rows_, capacity_, used_;
  bool stays_;
};

}  // namespace tessera::models
