// Products with small blocks, of all sizes that have a loop of their own and of others.
#include "nn/kernels/block_kernels.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/near_double.h"

namespace tessera::nn::kernels {
namespace {

class Blocks : public testing::TestWithParam<std::int64_t> {};

TEST_P(Blocks, ProductAndGradientAreSumsOfProducts) {
  const std::int64_t size = GetParam(), count = 3, stride = count * size;
  const auto t = waves(count * size * size, 0.7f, 1.0f);
  for (const std::int64_t rows : {1, 7, 8, 13}) {
    const auto x = waves(rows * stride, 0.3f, 1.0f), g = waves(rows * stride, 0.11f, 1.0f);
    std::vector<float> y(x.size()), sums(t.size(), 1.0f);
    block_product(x.data(), t.data(), y.data(), {rows, stride, count, size});
    block_gradient(x.data(), g.data(), sums.data(), {rows, stride, count, size});
    for (std::int64_t c = 0; c < count; ++c) {
      for (std::int64_t i = 0; i < size; ++i) {
        for (std::int64_t r = 0; r < rows; ++r) {
          double product = 0;
          for (std::int64_t k = 0; k < size; ++k)
            product += double{x[r * stride + c * size + k]} * double{t[(c * size + k) * size + i]};
          EXPECT_NEAR(y[r * stride + c * size + i], product, 1e-5) << size;
        }
        for (std::int64_t j = 0; j < size; ++j) {
          double sum = 1;
          for (std::int64_t r = 0; r < rows; ++r)
            sum += double{x[r * stride + c * size + i]} * double{g[r * stride + c * size + j]};
          EXPECT_NEAR(sums[(c * size + i) * size + j], sum, 1e-5) << size;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Blocks, testing::Values(1, 3, 4, 8, 12, 16, 32, 37, 64));

}  // namespace
}  // namespace tessera::nn::kernels
