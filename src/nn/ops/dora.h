#pragma once
// DoRA's weight norms (Liu et al. 2024, section 4.3) without making W + s B A: |w + s b A|^2 = |w|^2 + 2 s b.(A w) +
// s^2 b A A^T b^T for each row w of W and b of B. Only |w|^2 costs a pass over W, and a frozen W keeps it.
#include <ATen/core/Tensor.h>

#include "tessera/nn/weight.h"

namespace tessera::nn {

/// Sums of squares of W's rows (dim 1) or columns (dim 0), float32.
at::Tensor squared_norms(const at::Tensor& weight, std::int64_t dim);
/// Of its rows [out_features], a packed one's some at a time.
at::Tensor squared_norms(const Weight& weight);

/// squares: [out], of W's rows; wa: [out, rank], W A^T; a: [rank, in]; b: [out, rank]. Result: [out] float32, without
/// grad.
at::Tensor adapted_norms(const at::Tensor& squares, const at::Tensor& wa, const at::Tensor& a, const at::Tensor& b,
                         double scaling);

}  // namespace tessera::nn
