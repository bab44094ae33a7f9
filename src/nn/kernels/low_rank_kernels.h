#pragma once
// Loops of the products in nn/ops/low_rank.h for bfloat16 (as its bits), with sums in float32, by the dot-product
// instruction of nn/kernels/bf16_dot.h. Matrices are row-major; the rank is even.
// Callers divide the work among threads.
#include <cstdint>

namespace tessera::nn::kernels {

/// Of x [rows, columns], whose rows are `stride` apart, and of the factor with `rank` columns or rows.
struct LowRankSize {
  std::int64_t rows, columns, stride, rank;
};

/// u[rows, rank] = scale * x[rows, columns] a[rank, columns]^T; dense: stride is columns.
void low_rank_project(const std::uint16_t* x, const std::uint16_t* a, std::uint16_t* u, const LowRankSize& size,
                      float scale);
/// sums[rank, columns] += u[rows, rank]^T x[rows, columns]; rows of sums are `stride` apart, too.
void low_rank_gradient(const std::uint16_t* u, const std::uint16_t* x, float* sums, const LowRankSize& size);

}  // namespace tessera::nn::kernels
