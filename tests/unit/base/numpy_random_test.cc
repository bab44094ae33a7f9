#include "base/numpy_random.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tessera {
namespace {

using Values = std::vector<std::int64_t>;

TEST(NumpyRandom, ChoosesAndShufflesAsNumpy) {
  NumpyRandom random(42);
  EXPECT_EQ(random.choice(9, 4), (Values{3, 0, 7, 5}));
  Values values(7);
  std::iota(values.begin(), values.end(), 0);
  random.shuffle(values);
  EXPECT_EQ(values, (Values{0, 2, 5, 1, 4, 3, 6}));
}

TEST(NumpyRandom, ChoosesALargePartOfManyAsNumpy) {
  NumpyRandom random(3);
  const auto chosen = random.choice(20000, 1000);
  ASSERT_EQ(chosen.size(), 1000U);
  EXPECT_EQ(Values(chosen.begin(), chosen.begin() + 5), (Values{14316, 13289, 12713, 5283, 2159}));
  EXPECT_EQ(Values(chosen.end() - 5, chosen.end()), (Values{3626, 4735, 3588, 1712, 16230}));
  EXPECT_EQ(random.choice(20000, 1), (Values{1394}));
}

}  // namespace
}  // namespace tessera
