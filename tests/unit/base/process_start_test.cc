#include "base/process_start.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera {
namespace {

TEST(ProcessStart, ClosedStreamsAreOpenAndEndsOfChildrenAreTold) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (int fd = 0; fd <= 2; ++fd) ::close(fd);
    ::signal(SIGCHLD, SIG_IGN);
    begin_process();
    const bool is_next = ::open("/dev/null", O_RDONLY) > 2;
    const bool reads = ::fcntl(0, F_GETFD) >= 0, writes = ::write(1, "x", 1) == 1 && ::write(2, "x", 1) == 1;
    ::_exit(is_next && reads && writes && ::signal(SIGCHLD, SIG_DFL) == SIG_DFL ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tessera
