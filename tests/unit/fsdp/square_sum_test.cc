#include "fsdp/grads/square_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace tessera::fsdp {
namespace {

TEST(SquareSum, CountsEveryElementOnceWhateverTheLengthAndWhereItBegins) {
  std::vector<float> x(64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) + 1.0F;  // their squares add up exactly
  for (std::size_t begin = 0; begin < 4; ++begin) {
    double expected = 0;
    for (std::size_t n = 0; begin + n < x.size(); ++n) {
      EXPECT_EQ(sum_of_squares(x.data() + begin, static_cast<std::int64_t>(n)), expected) << begin << " " << n;
      expected += double{x[begin + n]} * x[begin + n];
    }
  }
}

TEST(SquareSum, IsInDoubleAndKeepsWhatIsNotFinite) {
  std::vector<float> x(19, std::numeric_limits<float>::max());
  EXPECT_NEAR(sum_of_squares(x.data(), 19) / (19 * std::pow(double{x[0]}, 2)), 1, 1e-15);
  for (std::size_t at : {0UL, 7UL, 18UL}) {
    auto bad = x;
    bad[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(sum_of_squares(bad.data(), 19))) << at;
    bad[at] = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(std::isinf(sum_of_squares(bad.data(), 19))) << at;
  }
}

}  // namespace
}  // namespace tessera::fsdp
