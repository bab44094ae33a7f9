#include "comm/group/operation_queue.h"

#include <utility>

#include "base/quiet_thread.h"
#include "base/short_slice.h"
#include "tensor/span.h"

namespace tessera::comm {
std::uint64_t OperationQueue::start(const Announcement& announcement, std::function<void()> run, Progress progress) {
  Lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  const std::uint64_t sequence = started_;
  if (sequence >= kRing && finished_ <= sequence - kRing) {  // the ring of announcements is full
    lock.unlock();
    wait(sequence - kRing);
    lock.lock();
  }
  operations_.push_back({announcement, std::move(run)});
  ++started_;
  if (!taken_) announce_started(lock);
  if (failure_) std::rethrow_exception(failure_);
  if (progress == Progress::kWhenWaited) return sequence;
  wanted_ = started_;
  if (!thread_.joinable()) thread_ = start_quiet_thread("tessera-comm", [this] { serve(); });
  lock.unlock();
  own_work_.notify_one();
  return sequence;
}

void OperationQueue::wait(std::uint64_t sequence) {
  Lock lock(mutex_);
  while (finished_ <= sequence) {
    if (failure_) std::rethrow_exception(failure_);
    if (taken_) {
      changed_.wait(lock);
      continue;
    }
    group_.let_spin(true);
    run_next(lock);
  }
}

void OperationQueue::with_turn(const std::function<void()>& use) {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return !taken_; });
  if (failure_) std::rethrow_exception(failure_);
  group_.let_spin(true);
  use_turn(lock, use);
  if (failure_) std::rethrow_exception(failure_);
}

void OperationQueue::stop() noexcept {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  if (!thread_.joinable()) return;
  group_.interrupt();
  own_work_.notify_one();
  thread_.join();
}

/// The turn must be free. A failure is the queue's from then on.
template <class Use>
void OperationQueue::use_turn(Lock& lock, const Use& use) {
  taken_ = true;
  lock.unlock();
  std::exception_ptr failure;
  try {
    use();
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  taken_ = false;
  if (failure && !failure_) failure_ = failure;
  changed_.notify_one();
  if (has_own_work()) own_work_.notify_one();
}

/// Tells the peers what was started while nobody could. The turn must be free.
void OperationQueue::announce_started(Lock& lock) {
  while (announced_ < started_ && !failure_) {
    const Announcement announcement = operations_[announced_ - finished_].announcement;
    use_turn(lock, [&] { group_.post(announcement); });
    ++announced_;
  }
}

/// There must be an operation, and the turn free.
void OperationQueue::run_next(Lock& lock) {
  announce_started(lock);
  if (failure_) return;
  const std::uint64_t sequence = finished_;
  auto& [announcement, run] = operations_.front();
  use_turn(lock, [&] {
    const tensor::Span span("comm", op_name(announcement.op));
    group_.meet(sequence);
    run();
    group_.finish(sequence);
    run = nullptr;  // whoever waits shall be the last to hold the tensors
  });
  if (failure_) return;
  operations_.pop_front();
  ++finished_;
}

void OperationQueue::serve() {
  take_short_slices();
  Lock lock(mutex_);
  while (true) {
    own_work_.wait(lock, [this] { return stopping_ || (has_own_work() && !taken_); });
    if (stopping_) return;
    group_.let_spin(false);
    run_next(lock);
    announce_started(lock);  // what was started meanwhile, which may be nobody's own work
  }
}

}  // namespace tessera::comm
