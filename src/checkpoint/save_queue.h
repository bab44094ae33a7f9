#pragma once
// The writing of one save on one rank: at once, or in a thread of its own while training goes on. Failures are kept
// until they are asked for, because the collectives of a save must be finished by every rank.
#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
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
  /// A job that reads a tensor which is valid for a moment only: a copy of it, or the tensor in this call, behind the
  /// jobs before it, where no more may be copied (and with kNow).
  void push_with(const at::Tensor& tensor, std::function<void(const at::Tensor&)> job);
  /// What jobs may read of a tensor that the optimizer will change: a copy that the thread makes before all else, once
  /// for each tensor of a save, or the tensor, where no more may be copied (and with kNow).
  std::shared_ptr<const at::Tensor> snapshot(const at::Tensor& tensor);
  /// Of the next save: how many bytes snapshot() may copy, and push_with(), whose copies are counted together. What
  /// lies on a device is not counted: it comes to the host anyway.
  void allow_copies(std::int64_t snapshots, std::int64_t moments);
  /// Since allow_copies(): what was given to snapshot() and push_with(), and what of it was copied.
  std::int64_t given_bytes() const;
  std::int64_t copied_bytes() const;
  /// When the thread was done with its last job.
  std::chrono::steady_clock::time_point last_job_end() const;
  /// Returns when tensors given to snapshot() may change: all copies are made, and what is read without one is written.
  /// Helps.
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
  /// Whether it may be copied, which is counted. allowed: bytes.
  bool may_copy(const at::Tensor& tensor, std::int64_t allowed);
  void finish_copies(std::unique_lock<std::mutex>& lock);
  void finish_jobs(std::unique_lock<std::mutex>& lock);
  void run_first_of(std::deque<Job>& jobs, int& running, std::unique_lock<std::mutex>& lock);
  void work();

  const Mode mode_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_, copies_;
  int running_ = 0, copying_ = 0;  // at the moment
  bool held_ = false, ending_ = false;
  std::int64_t snapshots_allowed_ = std::numeric_limits<std::int64_t>::max(), moments_allowed_ = snapshots_allowed_;
  std::int64_t given_ = 0, copied_ = 0;
  std::chrono::steady_clock::time_point last_job_end_ = {};
  bool reads_sources_ = false;  // some of the jobs, for want of copies
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
