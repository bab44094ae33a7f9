// Ranks as processes: the suite of every backend, and what happens when something goes wrong.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <system_error>

#include "comm/rendezvous/environment.h"
#include "comm/shm/shm_host.h"
#include "support/few_threads.h"
#include "tessera/base/error.h"
#include "unit/comm/bodies.h"
#include "unit/comm/processes.h"

namespace tessera::comm::testing {
namespace {

class Processes : public ::testing::TestWithParam<int> {};

// Four ranks are more than many machines have cores.
TEST_P(Processes, DoTheWholeSuite) {
  EXPECT_EQ(run_processes({.body = "Suite", .size = GetParam()}), std::vector<int>(GetParam(), 0));
}
INSTANTIATE_TEST_SUITE_P(Comm, Processes, ::testing::Values(1, 2, 3, 4));

class Mismatch : public ::testing::TestWithParam<std::string> {};

TEST_P(Mismatch, IsReportedByProcesses) {
  EXPECT_EQ(run_processes({.body = GetParam(), .size = 3}), std::vector<int>(3, 0));
}
TEST_P(Mismatch, IsReportedByThreads) {
  run_threads(3, faults().at(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Comm, Mismatch,
                         ::testing::Values("DifferentOperations", "DifferentSizes", "DifferentDtypes",
                                           "MismatchInTheBackground"));

TEST(Fault, AKilledRankIsNoticedWithinASecond) {
  const auto statuses = run_processes({.body = "KilledRank", .size = 3});
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  EXPECT_EQ(statuses[2], 0);
}

TEST(Fault, ATimeoutNamesWhoIsMissingAndWhereItIs) {
  EXPECT_EQ(run_processes({.body = "MissingRank", .size = 2, .environment = {"TESSERA_COMM_TIMEOUT_S=0.5"}}),
            std::vector<int>(2, 0));
}

TEST(Turns, WhatIsStartedWhileAGatherWaitsIsToldToThePeers) {
  EXPECT_EQ(run_processes({.body = "StartedBehindAGather", .size = 3, .environment = {"TESSERA_COMM_TIMEOUT_S=5"}}),
            std::vector<int>(3, 0));
}

TEST(Fault, AJobThatStoodStillAsAWholeGoesOn) {
  EXPECT_EQ(run_processes({.body = "SuspendedJob", .environment = {"TESSERA_COMM_TIMEOUT_S=2"}}),
            std::vector<int>(2, 0));
}

TEST(Fault, ARankThatLeavesEarlyIsNamed) {
  EXPECT_EQ(run_processes({.body = "RankLeavesEarly", .size = 3}), std::vector<int>(3, 0));
}

TEST(Fault, ARankThatHasFinishedIsNotTakenForDead) {
  EXPECT_EQ(run_processes({.body = "SlowRankOutlivesTheOthers", .size = 3}), std::vector<int>(3, 0));
}

TEST(Fault, TheFirstExceptionOfAThreadIsTheOneThatIsSeen) {
  try {
    run_threads(3, faults().at("ThrowingRank"));
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "out of luck");
  }
}

TEST(Fault, AThrowingProcessEndsTheOthers) {
  for (const auto* body : {"ThrowingRank", "RankLeavesWithWorkStarted"}) {
    const auto start = std::chrono::steady_clock::now();
    const auto statuses = run_processes({.body = body, .size = 3});
    EXPECT_NE(statuses[1], 0) << body;
    EXPECT_EQ(statuses[0], 0) << body;
    EXPECT_EQ(statuses[2], 0) << body;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << body;
  }
}

TEST(Fault, AThreadThatThrowsIsNotHeldUpByWhatItHasStarted) {
  try {
    run_threads(3, faults().at("RankLeavesWithWorkStarted"));
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "out of luck");
  }
}

TEST(Fault, AThreadThatCannotBeStartedEndsTheOthers) {
  const test::FewThreads few(1);
  EXPECT_THROW(run_threads(3, [](const auto& group) { group->barrier(); }), std::system_error);
}

TEST(Fault, MemoryThatTheSystemRefusesIsNoFaultOfRanks) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit none{1 << 20, before.rlim_max};
  std::error_code code;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
  try {
    meet_on_this_host({.job_key = "refused"});
  } catch (const std::system_error& error) {
    code = error.code();
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(code, std::errc::not_enough_memory);
}

TEST(Fault, AMissingRankEndsTheRendezvous) {
  const auto statuses = run_processes({.body = "Suite", .size = 3, .environment = {"SHORT_INIT=1"}, .started = 2});
  EXPECT_NE(statuses[0], 0);
  EXPECT_NE(statuses[1], 0);
}

TEST(Connect, WithoutVariablesIsAWorldOfOne) {
  EXPECT_EQ(connect()->backend(), "solo");
  EXPECT_THROW(connect({.backend = "mpi"}), ConfigError);
}

TEST(Connect, RanksWaitForEachOtherNoLongerThanForAnOperation) {
  using std::chrono::seconds;
  EXPECT_EQ(meeting_timeout(seconds(300), seconds(1800)), seconds(300));
  EXPECT_EQ(meeting_timeout(seconds(300), seconds(60)), seconds(60));
  EXPECT_EQ(meeting_timeout(seconds(300), seconds(2)), seconds(10));  // ranks do not start at the same moment
  EXPECT_EQ(meeting_timeout(seconds(1), seconds(2)), seconds(1));
}

TEST(Connect, RefusesContradictoryVariables) {
  setenv("RANK", "2", 1);
  EXPECT_THROW(connect(), ConfigError);
  setenv("WORLD_SIZE", "2", 1);
  EXPECT_THROW(connect(), ConfigError);
  setenv("RANK", "1", 1);
  setenv("LOCAL_WORLD_SIZE", "1", 1);
  EXPECT_THROW(connect(), ConfigError);
  setenv("LOCAL_WORLD_SIZE", "3", 1);
  try {
    connect({.init_timeout = std::chrono::seconds(1)});
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.key, "LOCAL_WORLD_SIZE");
  }
  unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_THROW(connect({.backend = "solo"}), ConfigError);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  for (const char* port : {"4294996796", "29500x", "0", "-1"}) {  // the first is 29500 in 32 bits
    setenv("MASTER_PORT", port, 1);
    EXPECT_THROW(connect({.backend = "hosts", .init_timeout = std::chrono::seconds(1)}), ConfigError) << port;
  }
  unsetenv("MASTER_ADDR");
  unsetenv("MASTER_PORT");
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
}

}  // namespace
}  // namespace tessera::comm::testing
