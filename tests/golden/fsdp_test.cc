// torch FSDP's own runs: 16 ways of wrapping, two models, 2 and 3 ranks. Units are gathered into copies;
// folders_test.cc plays the same runs with the form that one host's ranks choose.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "support/goldens.h"
#include "tessera/base/error.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

const std::string kRuns = test::goldens("H_fsdp").string();

/// Rank 0's report.
std::string replay_runs(int world, bool* passed) {
  std::ostringstream report;
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    at::set_num_threads(1);
    std::ostringstream quiet;
    const bool good = verify_fsdp({.folder = kRuns, .fsdp = {.wrap = nullptr, .gather = fsdp::GatherForm::kCopy}},
                                  group, group->rank() == 0 ? report : quiet);
    if (group->rank() == 0) *passed = good;
  });
  return report.str();
}

/// One rank plays the ranks of every run; several play those of runs with a multiple of them.
std::vector<int> worlds() {
  std::vector<int> worlds;
  if (!std::filesystem::exists(kRuns + "/expect.json")) return worlds;
  worlds = test::read_golden(kRuns + "/expect.json")["settings"]["worlds"].get<std::vector<int>>();
  worlds.insert(worlds.begin(), 1);
  return worlds;
}

/// Runs of the reference that `world` ranks can play: with a configuration, and without an error of upstream.
int runs_of(int world) {
  int count = 0;
  const auto expect = test::read_golden(kRuns + "/expect.json");
  for (const auto& [key, runs] : expect["runs"].items())
    for (const auto& [name, run] : runs.items())
      count +=
          run.contains("config") && !run.contains("error") && std::stoi(key.substr(key.rfind('_') + 1)) % world == 0;
  return count;
}

class FsdpGolden : public ::testing::TestWithParam<int> {};

TEST_P(FsdpGolden, LossesAndNormsAreThoseOfTorch) {
  bool passed = false;
  const auto report = replay_runs(GetParam(), &passed);
  EXPECT_TRUE(passed) << report;
  EXPECT_NE(report.find(std::to_string(runs_of(GetParam())) + " runs of torch FSDP"), std::string::npos) << report;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FsdpGolden);
INSTANTIATE_TEST_SUITE_P(Worlds, FsdpGolden, ::testing::ValuesIn(worlds()));

TEST(FsdpGoldenWorld, AWorldThatPlaysNoRunIsAnError) {
  if (worlds().empty()) return;
  bool passed = false;
  EXPECT_THROW(replay_runs(11, &passed), ConfigError);
}

}  // namespace
}  // namespace tessera::verify
