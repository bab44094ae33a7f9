#pragma once
// Sums of whole tensors: of a residual and its branch, and of the gradients of one that several read.
#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace tessera::nn {

/// a + b, of the same sizes, or one row b [n] for all rows of a [N, n].
at::Tensor plus(const at::Tensor& a, const at::Tensor& b);

/// x, `count` times, for those that read it, in the order in which they do. Backward adds up their gradients in one
/// pass over memory, where autograd makes a pass for each, and begins with the last, as autograd does.
std::vector<at::Tensor> for_readers(const at::Tensor& x, std::size_t count);

template <std::size_t kCount>
std::array<at::Tensor, kCount> for_readers(const at::Tensor& x) {
  auto readers = for_readers(x, kCount);
  std::array<at::Tensor, kCount> result;
  for (std::size_t i = 0; i < kCount; ++i) result[i] = std::move(readers[i]);
  return result;
}

}  // namespace tessera::nn
