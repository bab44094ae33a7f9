#pragma once
// Ranks as copies of one process. Loading libtorch takes a rank 0.2 s and 57 MiB, nearly all of it tables of operators
// that are never written to again; copies made by fork share these pages, and the work is done once.
//   The launcher: ForkServer starts the program once. It loads its libraries, forks the ranks and ends; the ranks then
//   are the launcher's own children, each in its process group, as if start() (process.h) had started them.
//   The program: become_rank() stands first in main(), and returns in each rank.
#include <sys/types.h>

#include <vector>

#include "launch/process.h"

namespace tessera::launch {

class ForkServer {
 public:
  /// Starts commands[0]'s program, whose output is the first rank's until there are ranks. All commands have the same
  /// program and args; environment, cores and streams are each rank's. Throws as start() does. While this lives, what
  /// any descendant leaves behind becomes a child of this process.
  explicit ForkServer(const std::vector<Command>& commands);
  /// Ends a server that still runs, and with it ranks that it has not handed over.
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  /// Readable when the server says something or has ended.
  int read_fd() const { return reply_.get(); }
  /// Takes what is there. True once the server has ended and been waited for.
  bool drain();
  /// SIGKILL, where it still runs.
  void end();

  /// After drain() was true: the ranks, by number; empty where the server failed.
  const std::vector<pid_t>& ranks() const { return ranks_; }
  /// How the server ended, as waitpid says it.
  int status() const { return status_; }

 private:
  Descriptor reply_;
  pid_t pid_ = -1;  // -1: waited for
  int status_ = 0;
  std::vector<pid_t> ranks_;
  std::size_t expected_;
};

/// In a program that a ForkServer has started: forks the ranks, returns in each of them, and ends this process. In any
/// other process it does nothing. Call it while there is one thread.
void become_rank();

}  // namespace tessera::launch
