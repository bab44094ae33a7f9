#pragma once
// In which order the units of a model are gathered and their gradients reduced: what fsdp/runtime and fsdp/grads follow
// and estimate/step_time.h plays. No memory, no communication.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tessera {

/// Which unit to gather ahead. Units are numbers; forward follows the order of the last forward, backward that in which
/// forwards have ended, reversed.
class GatherOrder {
 public:
  /// Of the root: all others follow.
  void begin_forward();
  void visit(int unit) { visits_.push_back(unit); }
  /// There was a forward before this one.
  bool known() const { return !last_visits_.empty(); }
  /// What the last forward visited after the unit that was visited last; nothing where this forward goes another way.
  std::optional<int> after(int unit) const;

  /// A forward has ended: its position, by which its backward finds the one before.
  std::int64_t end_visit(int unit);
  std::optional<int> before(std::int64_t position) const;
  /// No forward has ended since the last backward.
  bool between_steps() const { return ended_.empty(); }
  void end_backward() { ended_.clear(); }

 private:
  std::vector<int> ended_;                 // since the last backward
  std::vector<int> visits_, last_visits_;  // by the begin of forwards: in this one of the root, the last
};

/// Of reductions, which all ranks make in one order: how many are waited for when `started` of them have started.
struct ReductionsDue {
  std::size_t sharded = 0;    // inside the shard group; the sum across replicas then starts
  std::size_t completed = 0;  // and across replicas
};
ReductionsDue reductions_due(std::size_t started, bool replicated);

}  // namespace tessera
