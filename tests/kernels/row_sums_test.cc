#include "nn/kernels/row_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/near_double.h"

namespace tessera::nn::kernels {
namespace {

class RowSums : public testing::TestWithParam<std::int64_t> {};

TEST_P(RowSums, EqualTheSumsInDouble) {
  const std::int64_t n = GetParam();
  const auto x = waves(n, 0.7f), g = waves(n, 1.3f);
  const float factor = 0.5f, shift = 1.5f;
  double top = -std::numeric_limits<float>::max(), product = 0, sum = 0, weighted = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double e = std::exp(double{factor} * x[i] - shift);
    top = std::max<double>(top, x[i]);
    product += double{x[i]} * g[i];
    sum += e;
    weighted += e * g[i];
  }
  const double tolerance = 1e-6 * static_cast<double>(n + 1);
  EXPECT_EQ(largest(x.data(), n), static_cast<float>(top));
  EXPECT_NEAR(dot(x.data(), g.data(), n), product, 10 * tolerance);
  EXPECT_NEAR(sum_of_exponentials(x.data(), factor, shift, n), sum, tolerance);
  std::vector<float> y(x.size() + 1, 7.0f), again = x;
  EXPECT_NEAR(exponentials(x.data(), y.data(), factor, shift, n), sum, tolerance);
  EXPECT_NEAR(exponentials_dot(again.data(), again.data(), factor, shift, g.data(), n), weighted, 10 * tolerance);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(y[i], std::exp(factor * x[i] - shift), 3e-7f * y[i]);
    EXPECT_EQ(again[i], y[i]);
  }
  EXPECT_EQ(y.back(), 7.0f) << "beyond the row";
}

INSTANTIATE_TEST_SUITE_P(Lengths, RowSums, testing::Values(0, 1, 3, 15, 16, 17, 33, 1000));

TEST(Exponentials, AreZeroFarBelowAndKeepWhatIsNotANumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x{-86.0f, -88.0f, -infinity, nan, 0.0f};
  std::vector<float> y(x.size());
  EXPECT_TRUE(std::isnan(exponentials(x.data(), y.data(), 1.0f, 0.0f, 5)));
  EXPECT_GT(y[0], 0.0f);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_EQ(y[4], 1.0f);
}

// What stands for elements beyond a row, zeros, must not reach its sums, wherever the row is.
TEST(Exponentials, OfARowFarFromZeroHaveSumsOfTheRowAlone) {
  for (float shift = -400.0f; shift < 400.0f; shift += 0.25f) {
    std::vector<float> y(5);
    const std::vector<float> x(5, shift), g{1, 2, 3, 4, 5};
    ASSERT_EQ(exponentials_dot(x.data(), y.data(), 1.0f, shift, g.data(), 5), 15.0f) << shift;
    ASSERT_EQ(exponentials(x.data(), y.data(), 1.0f, shift, 5), 5.0f) << shift;
    ASSERT_EQ(sum_of_exponentials(x.data(), 1.0f, shift, 5), 5.0f) << shift;
  }
}

}  // namespace
}  // namespace tessera::nn::kernels
