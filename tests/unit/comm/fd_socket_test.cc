// Descriptors between processes where there are too many: of a process, or of a user on their way.
#include "comm/shm/fd_socket.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <system_error>

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;

std::string new_name() {
  static int count = 0;
  return "tessera-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

void allow_files(rlim_t files) {
  const rlimit few{files, files};
  ::setrlimit(RLIMIT_NOFILE, &few);
}

/// In a process that may end with other limits than this one.
template <class Body>
bool holds_apart(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST(FdSocket, DescriptorsThatAProcessMayNotOpenAreAnErrorWithTheRemedy) {
  EXPECT_TRUE(holds_apart([] {
    const std::string name = new_name();
    const FdSocket socket(name);
    socket.send(name, "two", {0, 1});
    const Descriptor next(::dup(0));
    allow_files(static_cast<rlim_t>(next.get()) + 1);
    try {
      socket.receive(10s);
    } catch (const std::system_error& error) {
      return error.code().value() == EMFILE && std::string(error.what()).find("ulimit -n") != std::string::npos;
    }
    return false;
  }));
}

TEST(FdSocket, TooManyDescriptorsOnTheirWayAreSentLater) {
  EXPECT_TRUE(holds_apart([] {
    if (::getuid() == 0 && ::setuid(65534) != 0) return false;  // root may have any number on their way
    const std::string name = new_name();
    const FdSocket socket(name);
    allow_files(20);
    const std::vector<int> ten(10, 0);
    bool is_full = false;
    try {
      for (int i = 0; i < 8 && !is_full; ++i) is_full = !socket.send(name, "ten", ten);
      return is_full && socket.receive(10s).has_value();
    } catch (const std::system_error&) {
      return false;
    }
  }));
}

}  // namespace
}  // namespace tessera::comm
