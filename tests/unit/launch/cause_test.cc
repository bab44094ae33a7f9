#include "launch/cause.h"

#include <gtest/gtest.h>

namespace tessera::launch {
namespace {

constexpr Ending killed(int rank, int signal) {
  return {rank, 128 + signal, true};
}
constexpr Ending exited(int rank, int code) {
  return {rank, code, false};
}

/// The rank that is blamed when ranks end in this order, each group between two looks.
int blamed(const std::vector<std::vector<Ending>>& order) {
  FirstCause cause;
  for (const auto& endings : order) cause.add(endings);
  return cause.found()->rank;
}

TEST(FirstCause, IsTheFirstToEnd) {
  EXPECT_EQ(blamed({{exited(2, 1)}, {killed(1, 11)}, {exited(0, 3)}}), 2);
  EXPECT_EQ(blamed({{killed(1, 9)}, {killed(0, 9)}}), 1);
}

TEST(FirstCause, IsNotARankThatOnlySaysThatAnotherIsLost) {
  EXPECT_EQ(blamed({{exited(0, 5)}, {exited(2, 5)}, {killed(1, 9)}}), 1);
  EXPECT_EQ(blamed({{exited(0, 5), killed(1, 9), exited(2, 5)}}), 1);
  EXPECT_EQ(blamed({{exited(0, 5)}, {exited(1, 2)}}), 1);
}

TEST(FirstCause, IsTheRankThatASignalEndedAndNotThoseThatStoppedWithIt) {
  EXPECT_EQ(blamed({{exited(0, 143)}, {killed(1, 15)}, {exited(2, 143)}}), 1);
  EXPECT_EQ(blamed({{exited(0, 143), killed(1, 15)}}), 1);
}

TEST(FirstCause, SpeaksWithRankZeroWhereRanksFailAlike) {
  EXPECT_EQ(blamed({{exited(1, 2)}, {exited(0, 2)}}), 0);
  EXPECT_EQ(blamed({{exited(1, 2)}, {exited(0, 3)}}), 1);
}

TEST(FirstCause, IsUncertainWhileOnlyConsequencesHaveBeenSeen) {
  FirstCause cause;
  EXPECT_FALSE(cause.is_certain());
  cause.add({exited(0, 5)});
  EXPECT_FALSE(cause.is_certain());
  cause.add({exited(1, 1)});
  EXPECT_TRUE(cause.is_certain());
}

TEST(Describe, NamesSignals) {
  EXPECT_EQ(describe(killed(0, 15)), "signal 15 (SIGTERM)");
  EXPECT_EQ(describe(killed(0, 9)), "signal 9 (SIGKILL: perhaps out of memory)");
  EXPECT_EQ(describe(exited(0, 143)), "exit code 143 (128 + SIGTERM)");
  EXPECT_EQ(describe(exited(0, 7)), "exit code 7");
}

}  // namespace
}  // namespace tessera::launch
