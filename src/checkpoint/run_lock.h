#pragma once
// One run at a time writes an output folder.
#include <string>

#include "base/held_name.h"

namespace tessera::checkpoint {

/// Holds `output_dir`/.tessera.lock until it is destroyed or the process ends, however it ends (the system takes the
/// lock back). CheckpointError when another process holds it, with that process and its host.
class RunLock {
 public:
  explicit RunLock(const std::string& output_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// True when the folder, or the lock in it, was removed, moved or replaced since: another run would be let in.
  bool is_lost() const;
  /// CheckpointError when it is lost.
  void check() const;

 private:
  void acquire();

  std::string output_dir_;
  HeldName name_;
  int descriptor_ = -1;
};

}  // namespace tessera::checkpoint
