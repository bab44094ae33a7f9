#pragma once
// How long the phases of a run took, on this rank.
#include <array>
#include <cstddef>

#include "train/seconds.h"

namespace tessera::train {

enum class Phase { kForwardAndBackward, kUpdate, kEvaluation, kSaving };
inline constexpr std::size_t kPhaseCount = 4;

/// In messages, "in evaluation", and as a key of the metrics file.
struct PhaseName {
  const char *text, *key;
};
inline constexpr PhaseName kPhaseNames[kPhaseCount] = {{"forward and backward", "forward_and_backward_seconds"},
                                                       {"the update", "update_seconds"},
                                                       {"evaluation", "evaluation_seconds"},
                                                       {"saving", "saving_seconds"}};

class PhaseClock {
 public:
  /// Until the next call the time counts as that phase's.
  void enter(Phase phase) {
    stop();
    phase_ = phase;
    is_running_ = true;
  }
  void stop() {
    if (is_running_) seconds_[static_cast<std::size_t>(phase_)] += seconds_since(since_);
    since_ = Clock::now();
    is_running_ = false;
  }
  double seconds(Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }

 private:
  std::array<double, kPhaseCount> seconds_{};
  Phase phase_ = Phase::kForwardAndBackward;
  bool is_running_ = false;
  Clock::time_point since_ = Clock::now();
};

}  // namespace tessera::train
