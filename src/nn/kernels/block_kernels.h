#pragma once
// Products of rows with a matrix of small square blocks on its diagonal, float32. Rows are `stride` apart; blocks:
// [count, size, size]. Callers divide the work among threads.
#include <cstdint>

namespace tessera::nn::kernels {

struct BlockRows {
  std::int64_t rows, stride, count, size;
};

/// y_c = x_c t_c for each block c of each row; y is not x.
void block_product(const float* x, const float* t, float* y, const BlockRows& shape);
/// sums_c += x_c' g_c, over the rows.
void block_gradient(const float* x, const float* g, float* sums, const BlockRows& shape);

}  // namespace tessera::nn::kernels
