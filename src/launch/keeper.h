#pragma once
// A process that outlives the launcher by a moment: should the launcher die without ending its ranks (kill -9), the
// keeper ends their process groups, so also what a user's program has started itself.
#include <sys/types.h>

#include "launch/process.h"

namespace tessera::launch {

class Keeper {
 public:
  /// Forks; call it while this process has one thread.
  Keeper();
  /// Ends the keeper. Groups that are still watched are left alone: the launcher is alive and ends them itself.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// A process that writes its pid here (Command::announce_fd) has its group watched.
  int announce_fd() const { return socket_.get(); }

 private:
  Descriptor socket_;
  pid_t pid_ = -1;
};

}  // namespace tessera::launch
