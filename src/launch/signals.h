#pragma once
// Signals as data: what a user, a service manager or a cluster wants of the launcher.
#include <signal.h>

#include "launch/process.h"

namespace tessera::launch {

/// While this lives, SIGINT, SIGTERM, SIGHUP and SIGCHLD wait to be read instead of acting. SIGHUP is left alone where
/// whoever started this process wanted it ignored (nohup).
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// Readable when a signal is waiting.
  int fd() const { return fd_.get(); }
  /// 0 where none is waiting.
  int next();

 private:
  sigset_t before_;
  Descriptor fd_;
};

/// "SIGTERM".
std::string signal_name(int signal);

}  // namespace tessera::launch
