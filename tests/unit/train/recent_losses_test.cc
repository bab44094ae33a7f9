#include "train/recent_losses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tessera::train {
namespace {

RecentLosses with(std::size_t count, double noise = 0.1) {
  RecentLosses losses;
  for (std::size_t i = 0; i < count; ++i) losses.add(2 + (i % 2 == 0 ? noise : -noise));
  return losses;
}

TEST(RecentLosses, AreNotJudgedByFewerThanTen) {
  EXPECT_FALSE(with(9).add(50));
  EXPECT_TRUE(with(10).add(50));
}

TEST(RecentLosses, ASpikeIsEightDeviationsAndATenthAboveTheMedian) {
  RecentLosses wide;
  for (int i = 0; i < 21; ++i) wide.add(2 + 0.01 * i);  // median 2.1, deviation 0.05
  auto again = wide;
  EXPECT_FALSE(wide.add(2.1 + 0.39)) << "within eight deviations";
  const auto spike = again.add(2.1 + 0.42);
  ASSERT_TRUE(spike);
  EXPECT_NEAR(spike->median, 2.1, 1e-12);
  EXPECT_NEAR(spike->deviation, 0.05, 1e-12);
  RecentLosses flat;
  for (int i = 0; i < 20; ++i) flat.add(2);
  auto same = flat;
  EXPECT_FALSE(flat.add(2.19)) << "within a tenth of the median";
  EXPECT_TRUE(same.add(2.21));
}

TEST(RecentLosses, ASpikeDoesNotHideTheNextOne) {
  auto losses = with(40);
  EXPECT_TRUE(losses.add(50));
  EXPECT_TRUE(losses.add(40));
}

TEST(RecentLosses, NormalNoiseHasNoSpikesAndOnlyTheLastSixtyFourCount) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(2, 0.3);
  RecentLosses losses;
  for (int i = 0; i < 20'000; ++i) EXPECT_FALSE(losses.add(normal(random))) << i;
  EXPECT_EQ(losses.oldest_first().size(), RecentLosses::kLossesKept);
  EXPECT_TRUE(RecentLosses({std::nan(""), 1.0}).oldest_first() == std::vector<double>{1.0});
}

}  // namespace
}  // namespace tessera::train
