#include "cli/exit_code.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <iostream>
#include <new>
#include <sstream>
#include <system_error>

#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

template <class E>
std::pair<int, std::string> outcome(const E& error) {
  std::ostringstream err;
  const int code = run_guarded([&]() -> int { throw error; }, err);
  return {code, err.str()};
}

TEST(ExitCode, EveryKindOfErrorHasItsOwn) {
  EXPECT_EQ(outcome(ConfigError("a")), std::make_pair(2, std::string("tessera error: a\n")));
  EXPECT_EQ(outcome(DataError("a")).first, 3);
  EXPECT_EQ(outcome(CheckpointError("a")).first, 4);
  EXPECT_EQ(outcome(CommError("a", 1, "all_gather", 2)).first, 5);
  EXPECT_EQ(outcome(InternalError("a")).first, 70);
  EXPECT_EQ(outcome(std::bad_alloc()).first, 71);
}

TEST(ExitCode, OutputThatCannotBeWrittenIsAnErrorUnlessItsReaderHasLeft) {
  const auto code_where = [](int fd) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGPIPE, SIG_IGN);
      ::dup2(fd, STDOUT_FILENO);
      std::cout << "said\n";
      std::ostringstream err;
      const int code = flush_output(kSuccess, err);
      ::_exit(code == kCheckpointError && err.str().find("No space left on device") == std::string::npos ? 99 : code);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  ::close(pipe[0]);
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC), null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  std::cout.flush();
  EXPECT_EQ(code_where(full), kCheckpointError);
  EXPECT_EQ(code_where(null), kSuccess);
  EXPECT_EQ(code_where(pipe[1]), kSuccess);
  for (const int fd : {pipe[1], full, null}) ::close(fd);
}

TEST(ExitCode, OfOtherLibrariesErrorsOnlyTheFirstLineIsShown) {
  EXPECT_EQ(outcome(std::runtime_error("what\nException raised from frame #0")),
            std::make_pair(70, std::string("tessera error: what\n")));
}

TEST(ExitCode, MemoryThatALibraryOrTheSystemRefusesIsOutOfMemory) {
  const std::pair<int, std::string> libtorchs = outcome(std::runtime_error(
      "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
      "64 bytes. Error code 12 (Cannot allocate memory)"));
  EXPECT_EQ(libtorchs.first, 71);
  EXPECT_EQ(libtorchs.second,
            "tessera error: out of memory; use more ranks, a smaller batch or a smaller model (not enough memory: 64 "
            "bytes more were needed)\n");
  EXPECT_EQ(outcome(std::system_error(ENOMEM, std::generic_category(), "mmap")).first, 71);
  EXPECT_EQ(outcome(std::system_error(EIO, std::generic_category(), "mmap")).first, 70);
}

TEST(ExitCode, WithoutAnExceptionTheBodyDecides) {
  std::ostringstream err;
  EXPECT_EQ(run_guarded([] { return 1; }, err), 1);
  EXPECT_EQ(err.str(), "");
}

}  // namespace
}  // namespace tessera::cli
