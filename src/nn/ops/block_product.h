#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// x times a matrix whose diagonal has the blocks and which is zero elsewhere, with autograd. x: [N, count * size],
/// blocks: [count, size, size], of x's dtype; sums in float32. For blocks of many times size tokens a pass over memory,
/// which a batched product would lay out anew.
at::Tensor block_product(const at::Tensor& x, const at::Tensor& blocks);

}  // namespace tessera::nn
