// torch FSDP's own runs: 16 ways of wrapping, two models, 2 and 3 ranks.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tessera/base/error.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

const std::string kRuns = TESSERA_TEST_DATA "/fsdp_runs";

/// Rank 0's report.
std::string replay_runs(int world, const fsdp::FsdpOptions& fsdp, bool* passed) {
  std::ostringstream report;
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    at::set_num_threads(1);
    std::ostringstream quiet;
    const bool good = verify_fsdp({.folder = kRuns, .fsdp = fsdp}, group, group->rank() == 0 ? report : quiet);
    if (group->rank() == 0) *passed = good;
  });
  return report.str();
}

class FsdpRuns : public ::testing::TestWithParam<std::tuple<int, fsdp::GatherForm>> {};

TEST_P(FsdpRuns, LossesAndNormsAreThoseOfTorch) {
  const auto [world, gather] = GetParam();
  bool passed = false;
  const auto report = replay_runs(world, {.wrap = nullptr, .gather = gather}, &passed);
  EXPECT_TRUE(passed) << report;
  EXPECT_NE(report.find(world == 1 ? "64 runs of torch FSDP, 1 rank" : "32 runs of torch FSDP"), std::string::npos)
      << report;
}

INSTANTIATE_TEST_SUITE_P(All, FsdpRuns,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(fsdp::GatherForm::kCopy, fsdp::GatherForm::kAuto)));

TEST(FsdpRunsWorld, AWorldThatPlaysNoRunIsAnError) {
  bool passed = false;
  EXPECT_THROW(replay_runs(4, {.wrap = nullptr}, &passed), ConfigError);
}

}  // namespace
}  // namespace tessera::verify
