#include "base/process_start.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/open_files.h"

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

TEST(ProcessStart, AllowsTheOpenFilesThatTheSystemAllowsUntilTheyAreGivenBack) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto soft = [] {
      rlimit files{};
      ::getrlimit(RLIMIT_NOFILE, &files);
      return files.rlim_cur;
    };
    const rlimit few{64, 128};
    ::setrlimit(RLIMIT_NOFILE, &few);
    begin_process();
    const bool raised = soft() == 128;
    allow_all_open_files();
    restore_open_files();
    ::_exit(raised && soft() == 64 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tessera
