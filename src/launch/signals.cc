#include "launch/signals.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::launch {

Signals::Signals() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&taken, s);
  struct sigaction hangup{};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler == SIG_IGN) sigdelset(&taken, SIGHUP);
  ::sigprocmask(SIG_BLOCK, &taken, &before_);
  fd_ = Descriptor(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (fd_.get() < 0) throw Error(fmt::format("signalfd: {}", std::strerror(errno)));
}

Signals::~Signals() {
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int Signals::next() {
  signalfd_siginfo info;
  return ::read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace tessera::launch
