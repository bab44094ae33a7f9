#pragma once
// The writing of one save on one rank: at once, or in a thread of its own while training goes on. Failures are kept
// until they are asked for, because the collectives of a save must be finished by every rank.
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
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
  /// What jobs may read of a tensor that the optimizer will change: the tensor (kNow), or a copy that the thread makes
  /// before all else, once for each tensor of a save. keep() is for what is valid for a moment only.
  std::shared_ptr<const at::Tensor> snapshot(const at::Tensor& tensor);
  /// Returns when all copies are made; helps to make them.
  void wait_copied();
  /// The same, and tensors that snapshot() is given from now on have other values than before.
  void forget_snapshots();
  /// Between the two only copies are made: jobs do not keep the thread from what is still to be asked for.
  void hold();
  void release();

  bool idle() const;
  void wait_idle();
  bool failed() const;
  /// Of the first job that threw; empty when none has. Call it when idle.
  std::string take_failure();

  /// Jobs report the files whose checksum they know, by path.
  void record(FileRecord file);
  std::vector<FileRecord> take_records();

 private:
  using Job = std::function<void()>;
  void run(const Job& job) noexcept;
  void run_first_of(std::deque<Job>& jobs, int& running, std::unique_lock<std::mutex>& lock);
  void work();

  const Mode mode_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_, copies_;
  int running_ = 0, copying_ = 0;  // at the moment
  bool held_ = false, ending_ = false;
  struct Snapshot {
    std::weak_ptr<const at::Tensor> copy;
    c10::weak_intrusive_ptr<c10::StorageImpl> source;  // freed memory may come back at the same address
  };
  std::map<std::pair<const void*, std::size_t>, Snapshot> snapshots_;  // by place and bytes
  std::string failure_;
  std::vector<FileRecord> records_;
  std::thread thread_;  // last: it uses what is above
};

/// Collective: the failure of any rank ("" for none) becomes a CheckpointError on every rank, so that none goes on
/// alone.
void throw_failure_of_any(comm::Communicator& group, const std::string& failure, const std::string& path);

}  // namespace tessera::checkpoint
