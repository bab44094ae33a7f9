#pragma once
// Which loss is a spike: one that lies far above those of the steps before it.
#include <cstddef>
#include <optional>
#include <vector>

namespace tessera::train {

struct LossSpike {
  double loss = 0, median = 0, deviation = 0;  // deviation: the median distance from the median
};

/// The losses of the last kLossesKept steps. With at least kLossesNeeded of them a loss is a spike when it lies above
/// their median by more than eight times their median deviation (5.4 standard deviations of normal noise) and by more
/// than a tenth of the median. A spike among them moves neither by much.
class RecentLosses {
 public:
  static constexpr std::size_t kLossesKept = 64, kLossesNeeded = 10;

  RecentLosses() = default;
  explicit RecentLosses(std::vector<double> oldest_first);
  /// The next step's, which then counts among them; what it is by those before.
  std::optional<LossSpike> add(double loss);
  const std::vector<double>& oldest_first() const { return losses_; }

 private:
  std::vector<double> losses_;
};

}  // namespace tessera::train
