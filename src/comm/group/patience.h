#pragma once
// How long a wait may take. Whoever waits looks now and then; a long time between two looks is one in which this
// process stood still (a job that SLURM has suspended, a paused container), and the others perhaps, too: it counts as a
// short one.
#include <algorithm>
#include <chrono>

namespace tessera::comm {

class Patience {
 public:
  explicit Patience(std::chrono::milliseconds time) : left_(time) {}

  /// Below zero: it is over.
  std::chrono::milliseconds left() {
    const auto now = Clock::now();
    left_ -= std::min<Clock::duration>(now - looked_, kLongestBetweenLooks);
    looked_ = now;
    return std::chrono::duration_cast<std::chrono::milliseconds>(left_);
  }
  bool is_over() { return left().count() < 0; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLongestBetweenLooks{300};  // they look every 100

  Clock::duration left_;
  Clock::time_point looked_ = Clock::now();
};

}  // namespace tessera::comm
