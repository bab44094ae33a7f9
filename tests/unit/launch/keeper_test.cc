#include "launch/keeper.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace tessera::launch {
namespace {

/// A launch with --max_restarts announces its ranks again and again.
TEST(Keeper, EndsTheGroupThatWasAnnouncedAfterThousandsOfOthers) {
  const pid_t rank = ::fork();
  if (rank == 0) {
    ::setpgid(0, 0);
    ::sleep(60);
    ::_exit(0);
  }
  ::setpgid(rank, rank);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    const Keeper keeper;
    const pid_t ended = ::fork();
    if (ended == 0) ::_exit(0);
    ::waitpid(ended, nullptr, 0);
    for (int i = 0; i < 5000; ++i)
      if (::write(keeper.announce_fd(), &ended, sizeof(ended)) != sizeof(ended)) ::_exit(1);
    if (::write(keeper.announce_fd(), &rank, sizeof(rank)) != sizeof(rank)) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(launcher, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  pid_t reaped = 0;
  for (int i = 0; i < 500 && reaped == 0; ++i) {
    reaped = ::waitpid(rank, &status, WNOHANG);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(reaped, rank) << "the rank is still there";
  if (reaped == rank) {
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  } else {
    ::kill(rank, SIGKILL);
    ::waitpid(rank, nullptr, 0);
  }
}

}  // namespace
}  // namespace tessera::launch
