#pragma once
// The operations that one rank has started in one group. They run one at a time, in the order in which they were
// started, so that ranks may wait for them in any order.
//
// Note [Turns]
// The Group, and the Wire to other hosts, belong to the thread that has the turn. A caller takes it to announce what it
// starts and to run operations up to the one that it waits for. An operation that progresses by itself is run by the
// queue's own thread, unless a caller has waited for it before that thread woke up. What is started while the other
// thread has the turn is announced to the peers when that thread is done with its operation.
//
// The thread exists from the first operation that progresses by itself. It inherits the cores of the thread that
// started it, takes no signals, and never spins: the cores belong to the computation.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "comm/group/group.h"

namespace tessera::comm {

enum class Progress {
  kWhenWaited,  // runs on the thread of a caller that waits for it or for a later one
  kByItself     // and on the queue's own
};

class OperationQueue {
 public:
  explicit OperationQueue(Group& group) : group_(group) {}
  ~OperationQueue() { stop(); }
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  /// `run`: what is to do when all ranks have started it; holds the tensors. Returns the operation's sequence. All
  /// functions throw the error of an earlier failure.
  std::uint64_t start(const Announcement& announcement, std::function<void()> run, Progress progress);
  /// How many; for the thread that starts them.
  std::uint64_t started() const { return started_; }
  /// Until this operation and those before are done, and what they held is released.
  void wait(std::uint64_t sequence);
  /// use() with the turn.
  void with_turn(const std::function<void()>& use);
  /// Gives up what is running. Nothing may be started afterwards.
  void stop() noexcept;

 private:
  struct Operation {
    Announcement announcement;
    std::function<void()> run;
  };
  using Lock = std::unique_lock<std::mutex>;

  template <class Use>
  void use_turn(Lock& lock, const Use& use);
  void announce_started(Lock& lock);
  void run_next(Lock& lock);
  void serve();
  bool has_own_work() const { return !failure_ && finished_ < wanted_; }

  Group& group_;
  std::mutex mutex_;
  std::condition_variable changed_, own_work_;  // for a caller that waits, for the thread
  std::deque<Operation> operations_;            // started and not finished
  std::uint64_t started_ = 0, announced_ = 0, finished_ = 0;
  std::uint64_t wanted_ = 0;  // operations before this one progress by themselves
  bool taken_ = false, stopping_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace tessera::comm
