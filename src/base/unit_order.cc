#include "base/unit_order.h"

#include <utility>

namespace tessera {

void GatherOrder::begin_forward() {
  std::swap(visits_, last_visits_);
  visits_.clear();
}

std::optional<int> GatherOrder::after(int unit) const {
  const auto at = visits_.size();
  if (at == 0 || at >= last_visits_.size() || last_visits_[at - 1] != unit) return std::nullopt;
  return last_visits_[at];
}

std::int64_t GatherOrder::end_visit(int unit) {
  ended_.push_back(unit);
  return static_cast<std::int64_t>(ended_.size()) - 1;
}

std::optional<int> GatherOrder::before(std::int64_t position) const {
  if (position <= 0 || position > static_cast<std::int64_t>(ended_.size())) return std::nullopt;
  return ended_[static_cast<std::size_t>(position - 1)];
}

// A reduction is waited for when the next one has started its own, and the sum across replicas, which starts then, when
// the one after that has.
ReductionsDue reductions_due(std::size_t started, bool replicated) {
  constexpr std::size_t kLag = 1;
  const std::size_t lag = replicated ? 2 * kLag : kLag;
  return {started > kLag ? started - kLag : 0, started > lag ? started - lag : 0};
}

}  // namespace tessera
