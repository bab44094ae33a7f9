#include "checkpoint/save_queue.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <exception>
#include <utility>

#include "base/plain_reason.h"
#include "base/quiet_thread.h"
#include "tensor/device.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {

SaveQueue::SaveQueue(Mode mode) : mode_(mode) {
  if (in_background()) thread_ = start_quiet_thread("tessera-save", [this] { work(); });
}

SaveQueue::~SaveQueue() {
  if (!in_background()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    held_ = false;
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

void SaveQueue::push_with(const at::Tensor& tensor, std::function<void(const at::Tensor&)> job) {
  if (in_background()) {
    std::unique_lock lock(mutex_);
    if (may_copy(tensor, moments_allowed_)) {
      lock.unlock();
      return push([job = std::move(job), copy = tensor.detach().clone()] { job(copy); });
    }
    finish_jobs(lock);
  }
  run([&] { job(tensor); });
}

bool SaveQueue::may_copy(const at::Tensor& tensor, std::int64_t allowed) {
  if (!tensor.is_cpu()) return true;
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  given_ += bytes;
  if (bytes > allowed - copied_) return false;
  copied_ += bytes;
  return true;
}

std::shared_ptr<const at::Tensor> SaveQueue::snapshot(const at::Tensor& tensor) {
  if (!in_background()) return std::make_shared<const at::Tensor>(tensor::on_host(tensor.detach()));
  const std::lock_guard lock(mutex_);
  const auto place = std::pair<const void*, std::size_t>(tensor.const_data_ptr(), tensor.nbytes());
  const auto storage = tensor.storage().getWeakStorageImpl();
  if (const auto known = snapshots_.find(place); known != snapshots_.end() && known->second.source == storage)
    if (auto taken = known->second.copy.lock()) return taken;
  const auto copy = std::make_shared<at::Tensor>();
  snapshots_.insert_or_assign(place, Snapshot{copy, storage});
  if (!may_copy(tensor, snapshots_allowed_)) {
    reads_sources_ = true;
    *copy = tensor.detach();
    return copy;
  }
  // Plain memcpy: torch's copy would start a second team of threads beside training's.
  copies_.push_back([copy, source = tensor.detach()] {
    if (!source.is_cpu()) {
      *copy = source.cpu();
      return;
    }
    at::Tensor made = at::empty(source.sizes(), source.options());
    std::memcpy(made.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
    *copy = std::move(made);
  });
  changed_.notify_all();
  return copy;
}

void SaveQueue::allow_copies(std::int64_t snapshots, std::int64_t moments) {
  const std::lock_guard lock(mutex_);
  snapshots_allowed_ = snapshots;
  moments_allowed_ = moments;
  given_ = copied_ = 0;
}

std::int64_t SaveQueue::given_bytes() const {
  const std::lock_guard lock(mutex_);
  return given_;
}

std::chrono::steady_clock::time_point SaveQueue::last_job_end() const {
  const std::lock_guard lock(mutex_);
  return last_job_end_;
}

std::int64_t SaveQueue::copied_bytes() const {
  const std::lock_guard lock(mutex_);
  return copied_;
}

void SaveQueue::wait_copied() {
  std::unique_lock lock(mutex_);
  finish_copies(lock);
  if (reads_sources_) finish_jobs(lock);
}

void SaveQueue::finish_copies(std::unique_lock<std::mutex>& lock) {
  while (!copies_.empty()) run_first_of(copies_, copying_, lock);
  changed_.wait(lock, [this] { return copying_ == 0; });
}

void SaveQueue::finish_jobs(std::unique_lock<std::mutex>& lock) {
  finish_copies(lock);
  while (held_ && !jobs_.empty()) run_first_of(jobs_, running_, lock);  // which the thread leaves alone
  changed_.wait(lock, [this] { return jobs_.empty() && running_ == 0; });
  reads_sources_ = false;
}

void SaveQueue::forget_snapshots() {
  wait_copied();
  const std::lock_guard lock(mutex_);
  snapshots_.clear();
}

void SaveQueue::hold() {
  const std::lock_guard lock(mutex_);
  held_ = in_background();
}

void SaveQueue::release() {
  {
    const std::lock_guard lock(mutex_);
    held_ = false;
  }
  changed_.notify_all();
}

bool SaveQueue::idle() const {
  const std::lock_guard lock(mutex_);
  return jobs_.empty() && copies_.empty() && running_ + copying_ == 0;
}

void SaveQueue::wait_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && copies_.empty() && running_ + copying_ == 0; });
}

bool SaveQueue::failed() const {
  const std::lock_guard lock(mutex_);
  return !failure_.empty();
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
  snapshots_.clear();
  reads_sources_ = false;  // all jobs are done
  return std::exchange(records_, {});
}

void SaveQueue::run(const Job& job) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
  }
  std::string failure;
  try {
    job();
    return;
  } catch (const std::exception& e) {
    failure = *e.what() ? plain_reason(e) : "unknown failure";
  } catch (...) {
    failure = "unknown failure";
  }
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
}

void SaveQueue::run_first_of(std::deque<Job>& jobs, int& running, std::unique_lock<std::mutex>& lock) {
  auto job = std::move(jobs.front());
  jobs.pop_front();
  ++running;
  lock.unlock();
  run(job);
  job = nullptr;  // frees what it holds before it counts as done
  lock.lock();
  last_job_end_ = std::chrono::steady_clock::now();
  --running;
  changed_.notify_all();
}

void SaveQueue::work() {
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !copies_.empty() || (!jobs_.empty() && !held_) || ending_; });
    if (!copies_.empty())
      run_first_of(copies_, copying_, lock);
    else if (copying_ > 0)  // by who waits for them
      changed_.wait(lock, [this] { return copying_ == 0; });
    else if (!jobs_.empty())
      run_first_of(jobs_, running_, lock);
    else if (ending_)
      return;
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
