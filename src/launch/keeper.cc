#include "launch/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bitset>
#include <cstring>

#include "launch/limits.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

constexpr pid_t kPids = 1 << 22;  // of Linux (PID_MAX_LIMIT)
constexpr pid_t kAllIsWell = 0;

/// Reads pids and kAllIsWell until the launcher's end closes. After fork, so no memory
/// is allocated here.
[[noreturn]] void keep(int socket) {
  ::setsid();                        // Ctrl-C is for the launcher
  static std::bitset<kPids> groups;  // pages that nobody writes to take no memory
  pid_t message = 0;
  while (true) {
    const ssize_t n = ::read(socket, &message, sizeof(message));
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof(message)) break;
    if (message == kAllIsWell) ::_exit(0);
    if (message > 1 && message < kPids) groups.set(static_cast<std::size_t>(message));
  }
  for (pid_t group = 2; group < kPids; ++group)
    if (groups.test(static_cast<std::size_t>(group))) ::kill(-group, SIGKILL);
  ::_exit(0);
}

}  // namespace

Keeper::Keeper() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error(fmt::format("cannot create a socket: {}", std::strerror(errno)));
  }
  Descriptor ours(ends[0]), theirs(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) throw Error("cannot start a process: " + why_no_process(errno));
  if (pid_ == 0) {
    ours.reset();
    // Whoever reads the launcher's output must see its end when the ranks are gone, not when the keeper is.
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
    keep(theirs.get());
  }
  socket_ = std::move(ours);
}

Keeper::~Keeper() {
  // The keeper may have been killed: then there is nobody to tell, and no SIGPIPE wanted.
  while (::send(socket_.get(), &kAllIsWell, sizeof(kAllIsWell), MSG_NOSIGNAL) < 0 && errno == EINTR) continue;
  socket_.reset();
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace tessera::launch
