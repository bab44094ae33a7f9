#pragma once
// The writing of one save on one rank: at once, or in a thread of its own while training goes on. Failures are kept
// until they are asked for, because the collectives of a save must be finished by every rank.
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/manifest.h"
#include "tessera/comm/communicator.h"

namespace tessera::checkpoint {

class SaveQueue {
 public:
  enum class Mode { kNow, kBackground };
  explicit SaveQueue(Mode mode = Mode::kNow);
  /// Finishes what was pushed.
  ~SaveQueue();
  SaveQueue(const SaveQueue&) = delete;
  SaveQueue& operator=(const SaveQueue&) = delete;

  bool in_background() const { return mode_ == Mode::kBackground; }
  /// Jobs run one after the other; after one has thrown, the others are dropped until take_failure().
  void push(std::function<void()> job);
  /// What a job may hold of a tensor that is valid now: a copy, or (kNow) the tensor.
  at::Tensor keep(const at::Tensor& tensor) const;
  /// A job that copies what will change later: wait_copied() returns when all of these are done.
  void push_copy(std::function<void()> job);
  void wait_copied();

  bool idle() const;
  void wait_idle();
  /// Of the first job that threw; empty when none has. Call it when idle.
  std::string take_failure();

  /// Jobs report the files whose checksum they know, by path.
  void record(FileRecord file);
  std::vector<FileRecord> take_records();

 private:
  void run(const std::function<void()>& job) noexcept;
  void work();

  const Mode mode_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool running_ = false, ending_ = false;
  int copies_ = 0;  // pushed and not done
  std::string failure_;
  std::vector<FileRecord> records_;
  std::thread thread_;  // last: it uses what is above
};

/// Collective: the failure of any rank ("" for none) becomes a CheckpointError on every rank, so that none goes on
/// alone.
void throw_failure_of_any(comm::Communicator& group, const std::string& failure, const std::string& path);

}  // namespace tessera::checkpoint
