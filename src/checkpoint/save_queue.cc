#include "checkpoint/save_queue.h"

#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

SaveQueue::SaveQueue(Mode mode) : mode_(mode) {
  if (in_background()) thread_ = std::thread([this] { work(); });
}

SaveQueue::~SaveQueue() {
  if (!in_background()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SaveQueue::push(std::function<void()> job) {
  if (!in_background()) return run(job);
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

at::Tensor SaveQueue::keep(const at::Tensor& tensor) const {
  return in_background() ? tensor.detach().clone() : tensor;
}

void SaveQueue::push_copy(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    ++copies_;
  }
  push([this, job = std::move(job)] {
    struct Done {
      SaveQueue& queue;
      ~Done() {
        const std::lock_guard lock(queue.mutex_);
        --queue.copies_;
        queue.changed_.notify_all();
      }
    } done{*this};
    job();
  });
}

void SaveQueue::wait_copied() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return copies_ == 0 || (jobs_.empty() && !running_); });
}

bool SaveQueue::idle() const {
  const std::lock_guard lock(mutex_);
  return jobs_.empty() && !running_;
}

void SaveQueue::wait_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !running_; });
}

std::string SaveQueue::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, {});
}

void SaveQueue::record(FileRecord file) {
  const std::lock_guard lock(mutex_);
  records_.push_back(std::move(file));
}

std::vector<FileRecord> SaveQueue::take_records() {
  const std::lock_guard lock(mutex_);
  return std::exchange(records_, {});
}

void SaveQueue::run(const std::function<void()>& job) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
  }
  std::string failure;
  try {
    job();
    return;
  } catch (const std::exception& e) {
    failure = *e.what() ? e.what() : "unknown failure";
  } catch (...) {
    failure = "unknown failure";
  }
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
}

void SaveQueue::work() {
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !jobs_.empty() || ending_; });
    if (jobs_.empty()) return;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = true;
    lock.unlock();
    run(job);
    job = nullptr;  // frees its copies before it counts as done
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

void throw_failure_of_any(comm::Communicator& group, const std::string& failure, const std::string& path) {
  const auto all = group.all_gather_objects(failure);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const std::string where = all.size() > 1 ? "rank " + std::to_string(rank) + ": " : "";
    throw CheckpointError(where + all[rank], path);
  }
}

}  // namespace tessera::checkpoint
