#pragma once
// Products with a matrix of few rows, R, as low-rank adapters have them, without autograd. They are passes over memory
// rather than arithmetic, for which a general matrix product takes two to three times as long; bfloat16 has loops of
// its own for R up to 16, all else goes through gemm(). N rows.
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// scale * x a^T, [N, R]; x: [N, M], a: [R, M], perhaps a transposed view.
at::Tensor low_rank_project(const at::Tensor& x, const at::Tensor& a, double scale = 1.0);
/// scale * u^T x, [R, M]; u: [N, R], x: [N, M].
at::Tensor low_rank_gradient(const at::Tensor& u, const at::Tensor& x, double scale = 1.0);

}  // namespace tessera::nn
