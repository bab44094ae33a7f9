#pragma once
// One run at a time writes an output folder.
#include <string>

namespace tessera::checkpoint {

/// Holds `output_dir`/.tessera.lock until it is destroyed or the process ends, however it ends (the system takes the
/// lock back). CheckpointError when another process holds it, with that process and its host.
class RunLock {
 public:
  explicit RunLock(const std::string& output_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace tessera::checkpoint
