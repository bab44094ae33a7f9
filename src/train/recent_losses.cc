#include "train/recent_losses.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::train {
namespace {

/// Of an even number the upper one of the middle.
double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

RecentLosses::RecentLosses(std::vector<double> oldest_first) : losses_(std::move(oldest_first)) {
  std::erase_if(losses_, [](double loss) { return !std::isfinite(loss); });
  if (losses_.size() > kLossesKept)
    losses_.erase(losses_.begin(), losses_.end() - static_cast<std::ptrdiff_t>(kLossesKept));
}

std::optional<LossSpike> RecentLosses::add(double loss) {
  std::optional<LossSpike> spike;
  if (losses_.size() >= kLossesNeeded) {
    const double median = median_of(losses_);
    std::vector<double> distances;
    for (const double other : losses_) distances.push_back(std::abs(other - median));
    const double deviation = median_of(std::move(distances));
    if (loss - median > std::max(8 * deviation, 0.1 * std::abs(median))) spike = {loss, median, deviation};
  }
  if (losses_.size() == kLossesKept) losses_.erase(losses_.begin());
  losses_.push_back(loss);
  return spike;
}

}  // namespace tessera::train
