#include "launch/cores.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "launch/gpus.h"
#include "support/temp_folder.h"
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

TEST(CorePlan, GivesRanksTheCoresBesideTheirGpus) {
  const std::vector<int> first = {0, 1, 4, 5}, second = {2, 3, 6, 7};
  const auto slices = [&](std::vector<std::vector<int>> beside, std::optional<int> threads = {}) {
    const int ranks = static_cast<int>(beside.size());
    return plan_cores({.ranks = ranks, .threads_per_rank = threads, .insist = false, .beside = std::move(beside)},
                      kEight);
  };
  using Slices = std::vector<std::vector<int>>;
  EXPECT_EQ(slices({second, first}).cpus_of_rank, (Slices{{2, 6, 3, 7}, {0, 4, 1, 5}}));
  const auto three = slices({second, first, second});
  EXPECT_EQ(three.cpus_of_rank, (Slices{{2, 6}, {0, 4, 1, 5}, {3, 7}}));
  EXPECT_EQ(three.threads_per_rank, 2);
  const auto equal = (Slices{{0, 4, 1, 5}, {2, 6, 3, 7}});
  EXPECT_EQ(slices({{8}, first}).cpus_of_rank, equal) << "no core of the first may be used";
  EXPECT_EQ(slices({{0, 1, 2}, {2, 3}}).cpus_of_rank, equal) << "they overlap";
  EXPECT_EQ(slices({{3}, first}, 2).cpus_of_rank, equal) << "too few for the threads";
}

TEST(CorePlan, ReadsWhichCoresLieBesideAGpu) {
  const test::TempFolder root("gpus");
  const auto gpu = [&](const std::string& address, const std::string& cpus) {
    std::filesystem::create_directories(root.path() + "/proc/driver/nvidia/gpus/" + address);
    std::filesystem::create_directories(root.path() + "/sys/bus/pci/devices/" + address);
    std::ofstream(root.path() + "/sys/bus/pci/devices/" + address + "/local_cpulist") << cpus << '\n';
  };
  using Cpus = std::vector<std::vector<int>>;
  EXPECT_EQ(cpus_beside_gpus(1, {}, root.path()), Cpus{}) << "there is none";
  gpu("0000:81:00.0", "4-5,7");
  gpu("0000:3b:00.0", "0-2");
  EXPECT_EQ(cpus_beside_gpus(2, {}, root.path()), (Cpus{{0, 1, 2}, {4, 5, 7}}));
  EXPECT_EQ(cpus_beside_gpus(1, "1", root.path()), (Cpus{{4, 5, 7}}));
  EXPECT_EQ(cpus_beside_gpus(2, "1,0", root.path()), (Cpus{{4, 5, 7}, {0, 1, 2}}));
  for (const char* unknown : {"GPU-3f2a", "2", "1", ""})
    EXPECT_EQ(cpus_beside_gpus(2, unknown, root.path()), Cpus{}) << unknown;
  gpu("0000:3b:00.0", "none");
  EXPECT_EQ(cpus_beside_gpus(1, {}, root.path()), Cpus{});
}

}  // namespace
}  // namespace tessera::launch
