#pragma once
// Products of 16-bit matrices on processors that cannot multiply these. libtorch's own way there takes elements one by
// one: here parts of the factors become float32 in memory that stays in the cache, float32 is multiplied, and the sum
// is rounded once.
#include "nn/ops/tiled_gemm.h"

namespace tessera::nn {

/// The product a b belongs here: of float16 on the CPU, or of bfloat16 on a CPU without an instruction for it; but for
/// a few rows with columns of b that are contiguous in memory (generation), where libtorch has fast dot products.
bool needs_widening(const at::Tensor& a, bool contiguous_columns);
bool needs_widening(const at::Tensor& a, const at::Tensor& b);

/// out = alpha * (a b + u v), or out += that. a: [M, K], b: [K, N], or both with a leading batch size and no addend;
/// same dtype; views that are transposed are read in place. out: contiguous rows, of the same dtype.
void widened_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addend& addend, double alpha,
                  bool add);

}  // namespace tessera::nn
