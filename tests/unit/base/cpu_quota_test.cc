#include "base/cpu_quota.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/temp_folder.h"

namespace tessera {
namespace {

class CpuQuota : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root_.path() + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  int found(const std::string& membership) const { return cpu_quota(membership, root_.path()); }

  test::TempFolder root_{"cgroup"};
};

TEST_F(CpuQuota, IsUnlimitedWithoutAnyWord) {
  EXPECT_EQ(found(""), 0);
  EXPECT_EQ(found("0::/\n"), 0);
  write("cpu.max", "max 100000");
  EXPECT_EQ(found("0::/\n"), 0);
  EXPECT_EQ(found("nonsense\n0:\n0::\n"), 0);
}

TEST_F(CpuQuota, OfAContainerIsAtTheMount) {
  write("cpu.max", "250000 100000");
  EXPECT_EQ(found("0::/\n"), 3);
  EXPECT_EQ(found("0::/docker/of-another-namespace\n"), 3);
}

TEST_F(CpuQuota, IsTheNarrowestOnTheWayUp) {
  write("jobs/cpu.max", "200000 100000");
  write("jobs/one/cpu.max", "max 100000");
  write("jobs/other/cpu.max", "50000 100000");
  EXPECT_EQ(found("0::/jobs/one\n"), 2);
  EXPECT_EQ(found("0::/jobs/other\n"), 1);
  EXPECT_EQ(found("0::/elsewhere\n"), 0);
}

TEST_F(CpuQuota, IsKnownOfVersionOne) {
  write("cpu/docker/x/cpu.cfs_quota_us", "400000");
  write("cpu/docker/x/cpu.cfs_period_us", "100000");
  EXPECT_EQ(found("5:cpuset:/\n4:cpu,cpuacct:/docker/x\n0::/\n"), 4);
  write("cpu/docker/x/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(found("4:cpu,cpuacct:/docker/x\n"), 0);
}

}  // namespace
}  // namespace tessera
