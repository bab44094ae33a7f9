#pragma once
// Loops of the products in nn/ops/low_rank.h for bfloat16 (as its bits), with sums in float32, by instructions that
// multiply pairs (nn/kernels/pair_products.h says whether there are). Matrices are row-major; R, the rank, is even.
// Callers divide the work among threads.
#include <cstdint>

namespace tessera::nn::kernels {

/// u[rows, R] = scale * x[rows, M] a[R, M]^T.
void low_rank_project(const std::uint16_t* x, const std::uint16_t* a, std::uint16_t* u, std::int64_t rows,
                      std::int64_t m, std::int64_t r, float scale);
/// sums[R, columns] += u[rows, R]^T x[rows, columns]; rows of x and of sums are m apart.
void low_rank_gradient(const std::uint16_t* u, const std::uint16_t* x, float* sums, std::int64_t rows,
                       std::int64_t columns, std::int64_t m, std::int64_t r);

}  // namespace tessera::nn::kernels
