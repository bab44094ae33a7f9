// Ranks on several hosts, all played by this machine: the suite of every backend, the same bits as on one host, and
// what happens when something goes wrong.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <random>
#include <thread>

#include "comm/hosts/hosts.h"
#include "comm/rendezvous/connect_hosts.h"
#include "support/namespaces.h"
#include "support/random_delays.h"
#include "tessera/base/error.h"
#include "unit/comm/bodies.h"
#include "unit/comm/processes.h"

namespace tessera::comm::testing {
namespace {

class SeveralHosts : public ::testing::TestWithParam<std::vector<int>> {};

// One rank each, several, and hosts of different sizes.
TEST_P(SeveralHosts, DoTheWholeSuite) {
  const std::vector<int> hosts = GetParam();
  const int size = std::accumulate(hosts.begin(), hosts.end(), 0);
  EXPECT_EQ(run_processes({.body = "Suite", .size = size, .hosts = hosts}), std::vector<int>(size, 0));
}
INSTANTIATE_TEST_SUITE_P(Comm, SeveralHosts,
                         ::testing::Values(std::vector{1, 1}, std::vector{1, 1, 1}, std::vector{2, 2},
                                           std::vector{3, 2}, std::vector{1, 2, 1}));

/// Counted where they leave and reach each host: one rank a host (direct sums), two (bfloat16 directly, fp32 by chain).
TEST(SeveralHostsTraffic, NoLinkCarriesMoreThanItMust) {
  for (const int ranks : {1, 2}) {
    for (const int hosts : {2, 3}) {
      const test::Namespaces namespaces(hosts);
      if (!namespaces.made()) GTEST_SKIP() << test::Namespaces::kSkipped;
      EXPECT_EQ(run_processes({.body = "NoLinkCarriesMoreThanItMust",
                               .size = ranks * hosts,
                               .environment = {"HOSTS=" + std::to_string(hosts)},
                               .hosts = std::vector<int>(hosts, ranks),
                               .in_namespaces = true}),
                std::vector<int>(ranks * hosts, 0));
    }
  }
}

class MismatchBetweenHosts : public ::testing::TestWithParam<std::string> {};

TEST_P(MismatchBetweenHosts, IsReportedByAllRanks) {
  EXPECT_EQ(run_processes({.body = GetParam(), .size = 2, .hosts = {1, 1}}), std::vector<int>(2, 0));
  EXPECT_EQ(run_processes({.body = GetParam(), .size = 4, .hosts = {2, 2}}), std::vector<int>(4, 0));
}
INSTANTIATE_TEST_SUITE_P(Comm, MismatchBetweenHosts,
                         ::testing::Values("DifferentOperations", "DifferentSizes", "DifferentDtypes",
                                           "MismatchInTheBackground"));

TEST(HostsFault, AKilledRankIsNoticedOnTheOtherHostWithinASecond) {
  for (const auto& hosts : {std::vector{1, 1, 1}, std::vector{2, 1}}) {
    const auto statuses = run_processes({.body = "KilledRank", .size = 3, .hosts = hosts});
    EXPECT_EQ(statuses[0], 0);
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
    EXPECT_EQ(statuses[2], 0);
  }
}

/// Wherever in the transfer it is hit; the engine alone would wait for the rest of the message for ever.
TEST(HostsFault, ARankThatIsKilledInTheMiddleOfAMessageIsNoticed) {
  const auto statuses = run_processes({.body = "KilledInTheMiddleOfAMessage", .size = 3, .hosts = {1, 1, 1}});
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  EXPECT_EQ(statuses[2], 0);
}

TEST(HostsFault, AConnectionThatIsCutIsNotTakenForACrash) {
  EXPECT_EQ(run_processes({.body = "ConnectionForDataIsCut", .size = 2, .hosts = {1, 1}}), std::vector<int>(2, 0));
}

/// With the five seconds of the default the rank is taken for lost.
TEST(HostsFault, ACableThatIsOutForSevenSecondsIsSurvivedWhereTheKeepAliveIsLonger) {
  const test::Namespaces namespaces;
  if (!namespaces.made()) GTEST_SKIP() << test::Namespaces::kSkipped;
  std::thread out_and_in;
  const auto pull = [&](int) {
    out_and_in = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      namespaces.pull_the_cable();
      std::this_thread::sleep_for(std::chrono::seconds(7));
      namespaces.plug_the_cable();
    });
  };
  EXPECT_EQ(run_processes({.body = "OperationsForNineSeconds",
                           .environment = {"TESSERA_KEEPALIVE_S=30"},
                           .hosts = {1, 1},
                           .in_namespaces = true,
                           .before_last = pull}),
            std::vector<int>(2, 0));
  out_and_in.join();
}

TEST(HostsFault, ATimeoutNamesWhoIsMissingAndWhereItIs) {
  EXPECT_EQ(
      run_processes({.body = "MissingRank", .size = 2, .environment = {"TESSERA_COMM_TIMEOUT_S=0.5"}, .hosts = {1, 1}}),
      std::vector<int>(2, 0));
  EXPECT_EQ(
      run_processes({.body = "MissingRank", .size = 4, .environment = {"TESSERA_COMM_TIMEOUT_S=0.5"}, .hosts = {2, 2}}),
      std::vector<int>(4, 0));
}

TEST(HostsFault, AJobThatStoodStillAsAWholeGoesOn) {
  EXPECT_EQ(run_processes({.body = "SuspendedJob", .environment = {"TESSERA_COMM_TIMEOUT_S=2"}, .hosts = {1, 1}}),
            std::vector<int>(2, 0));
}

/// torchrun's agents count their own restarts; one that comes later begins at none.
TEST(Agents, MeetWhereOneWasRestartedMoreOften) {
  EXPECT_EQ(run_processes({.body = "Meet", .environment = {"OTHER_RESTART=1"}, .hosts = {1, 1}}),
            std::vector<int>(2, 0));
}

TEST(HostsFault, ARankThatLeavesEarlyIsNamed) {
  EXPECT_EQ(run_processes({.body = "RankLeavesEarly", .size = 2, .hosts = {1, 1}}), std::vector<int>(2, 0));
}

TEST(HostsFault, ARankThatHasFinishedIsNotTakenForDead) {
  EXPECT_EQ(run_processes({.body = "SlowRankOutlivesTheOthers", .size = 3, .hosts = {2, 1}}), std::vector<int>(3, 0));
}

TEST(HostsFault, AThrowingProcessEndsTheOthers) {
  const auto start = std::chrono::steady_clock::now();
  const auto statuses = run_processes({.body = "ThrowingRank", .size = 3, .hosts = {1, 2}});
  EXPECT_EQ(statuses[0], 0);
  EXPECT_NE(statuses[1], 0);
  EXPECT_EQ(statuses[2], 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(HostsFault, AMissingHostEndsTheRendezvous) {
  const auto statuses =
      run_processes({.body = "Suite", .size = 3, .environment = {"SHORT_INIT=1"}, .started = 2, .hosts = {2, 1}});
  EXPECT_NE(statuses[0], 0);
  EXPECT_NE(statuses[1], 0);
}

/// One case after the other, each with other numbers of hosts, ranks and operations. TESSERA_TEST_SECONDS=3600 makes a
/// campaign of it, TESSERA_TEST_SEED another one.
TEST(SeveralHostsAtRandom, SumUpAndMoveWhatPlainTensorsDo) {
  const char* first = std::getenv("TESSERA_TEST_SEED");
  std::mt19937 random(first == nullptr ? 1 : static_cast<std::uint32_t>(std::atoi(first)));
  const auto end = std::chrono::steady_clock::now() + test::soak_time();
  int layouts = 0;
  do {
    std::vector<int> hosts(random() % 5);
    for (int& ranks : hosts) ranks = 1 + static_cast<int>(random() % 3);
    const int size =
        hosts.empty() ? 2 + static_cast<int>(random() % 4) : std::accumulate(hosts.begin(), hosts.end(), 0);
    const std::string seed = std::to_string(random() % 1'000'000);
    ASSERT_EQ(run_processes({.body = "RandomOperations",
                             .size = size,
                             .environment = {"TESSERA_TEST_SEED=" + seed, "TESSERA_TEST_STEPS=60"},
                             .hosts = hosts}),
              std::vector<int>(static_cast<std::size_t>(size), 0))
        << "seed " << seed << ", hosts " << ::testing::PrintToString(hosts) << ", ranks " << size;
    ++layouts;
  } while (std::chrono::steady_clock::now() < end);
  std::cout << layouts << " layouts\n";
}

TEST(HostsOfWorld, FollowEachOther) {
  const Hosts hosts = hosts_of_world({"a", "a", "a", "b", "c", "c"});
  EXPECT_EQ(hosts.count(), 3);
  EXPECT_EQ(hosts.lanes(), 1);
  EXPECT_EQ(hosts.first(2), 4);
  EXPECT_EQ(hosts.size(0), 3);
  EXPECT_EQ(hosts.host_of(3), 1);
  EXPECT_EQ(hosts.host_of(5), 2);
  EXPECT_THROW(hosts_of_world({"a", "b", "a"}), ConfigError);
}

TEST(FirstNode, IsReadFromSlurmsList) {
  EXPECT_EQ(first_node("node7"), "node7");
  EXPECT_EQ(first_node("a1,b[2-3]"), "a1");
  EXPECT_EQ(first_node("gpu[03-05,9],x1"), "gpu03");
  EXPECT_EQ(first_node("n[7,9]-ib"), "n7-ib");
  EXPECT_EQ(first_node("n[01-03,07],gpu5"), "n01");
  EXPECT_EQ(first_node("rack[0-1]_blade[12-41],x"), "rack0_blade12");
}

TEST(FirstNode, IsOfNoOtherList) {
  for (const char* list : {"", ",", "n1,", "n[", "n[]", "n[1", "n1]", "n[1-]", "n[-3]", "n[3-1]", "n[1,]", "n[a-b]",
                           "n[1-2-3]", "n[[1]]", "2(x3)", "a b"})
    EXPECT_EQ(first_node(list), std::nullopt) << list;
}

}  // namespace
}  // namespace tessera::comm::testing
