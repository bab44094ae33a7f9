#include "launch/cores.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

const std::vector<int> kEight = {0, 4, 1, 5, 2, 6, 3, 7};  // hyper-threads beside each other

TEST(CorePlan, GivesRanksEqualDisjointNeighbours) {
  const CorePlan plan = plan_cores({.ranks = 3, .threads_per_rank = {}, .insist = false}, kEight);
  EXPECT_EQ(plan.threads_per_rank, 2);
  EXPECT_EQ(plan.cpus_of_rank, (std::vector<std::vector<int>>{{0, 4}, {1, 5}, {2, 6}}));
  EXPECT_TRUE(plan.warnings.empty());
}

TEST(CorePlan, SharesCoresWithAWarningWhereThereAreTooFew) {
  const CorePlan plan = plan_cores({.ranks = 9, .threads_per_rank = {}, .insist = false}, kEight);
  EXPECT_EQ(plan.threads_per_rank, 1);
  EXPECT_TRUE(plan.cpus_of_rank.empty());
  EXPECT_EQ(plan.warnings.size(), 1u);
}

TEST(CorePlan, KeepsTheSliceWhenFewerThreadsAreAskedFor) {
  const CorePlan plan = plan_cores({.ranks = 2, .threads_per_rank = 3, .insist = false}, kEight);
  EXPECT_EQ(plan.threads_per_rank, 3);
  EXPECT_EQ(plan.cpus_of_rank[1].size(), 4u);
}

TEST(CorePlan, RefusesTooManyThreadsOnlyWhereBindingIsInsistedOn) {
  EXPECT_EQ(plan_cores({.ranks = 2, .threads_per_rank = 5, .insist = false}, kEight).warnings.size(), 1u);
  try {
    plan_cores({.ranks = 2, .threads_per_rank = 5, .insist = true}, kEight);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("2 ranks with 5 threads each need 10 cores, and 8 are available"),
              std::string::npos);
  }
  EXPECT_THROW(plan_cores({.ranks = 1, .threads_per_rank = 0, .insist = false}, kEight), ConfigError);
}

}  // namespace
}  // namespace tessera::launch
