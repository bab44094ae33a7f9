#pragma once
// NCCL's functions over threads of one process, for tensors of fake devices: an operation is done when its call
// returns, or where it is told to a stream of theirs (support/fake_streams.h) when that gets there. As NCCL's, it waits
// for ever where ranks make different calls, or one makes none, until its communicator is aborted.
#include <functional>
#include <string>

#include "comm/device/nccl.h"

namespace tessera::test {

/// While it lives, nccl() is this one.
class FakeNccl {
 public:
  FakeNccl();
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  /// From now on the rank's calls of this function ("ncclSend") return an error.
  static void fail(int rank, const std::string& function);
  /// From now on this rank's communicators report that error as one that came while an operation ran.
  static void fail_later(int rank);
  /// This rank's operations that begin from now on do not end before their communicator is aborted.
  static void hang(int rank);
  /// Is called before each of NCCL's functions that tell a rank's communicator something, with the function's name, and
  /// may call the three above.
  static void before_calls(std::function<void(int rank, const std::string& function)> call);
  /// Communicators that were not destroyed or aborted.
  static int open_communicators();
  /// How often one was aborted, and so freed, before or while it was told something.
  static int communicators_freed_in_calls();
};

}  // namespace tessera::test
