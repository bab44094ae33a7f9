#pragma once
// Gradients of all units: accumulated in flat buffers, reduced unit by unit to this rank's slices.
//
// Note [Order of reductions]
// Every unit with trainable parameters is reduced exactly once in each synchronising backward, in one order that all
// ranks share whatever their data made them run: a unit that finishes early waits for its turn, a unit that did not run
// contributes zeros. The order starts as reverse registration and becomes, after the first backward, the order in which
// rank 0 finished.
//
// Note [Slots]
// With shared memory a rank's contributions must lie where its peers look for them. Unit i of the order accumulates in
// slot i mod kSlots (the root, which is open during the whole backward, has its own). A slot is written only when the
// reduction of its previous user has started here and its readers are done; else the unit accumulates privately and
// copies when its turn comes.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/flat_layout.h"
#include "fsdp/mesh.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

/// A trainable segment: its layout, its sharded leaf, the dtype of its reduction.
struct TrainableSegment {
  Segment layout;
  at::Tensor leaf;
  at::ScalarType reduce = at::kFloat;
  std::int64_t buffer_bytes() const;
};

class GradientReducer {
 public:
  GradientReducer(Mesh mesh, CommStats& stats);
  ~GradientReducer();

  /// Units in registration order, the root first; without trainable segments too. Collective when `shared_memory`.
  void set_units(std::vector<std::vector<TrainableSegment>> units, bool shared_memory);

  void set_divisor(double divisor) { divisor_ = divisor; }
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }

  /// The unit runs in the coming backward: its reduction waits for it, or for the end.
  void expect(int unit);
  void accumulate(int unit, int segment, int entry, const at::Tensor& grad);
  void unit_finished(int unit);
  /// The end of backward. Collective when synchronising: afterwards all leaves have their gradients.
  void backward_finished();
  /// A backward that threw: forgets what it left.
  void abandon() noexcept;

  std::int64_t buffer_bytes() const;  // slots of this rank and private buffers, now
  std::int64_t shard_bytes() const;   // gradients of the slices, now

 private:
  struct UnitState;
  struct Flight;

  void allocate_slots();
  void assign_slots();
  void agree_on_order();
  bool may_use_slot(const UnitState& u) const;
  at::Tensor slot_view(const UnitState& u, std::size_t segment, int rank) const;
  void open_buffers(UnitState& u);
  void fill_missing(UnitState& u);
  void move_to_slot(UnitState& u);
  void start_ready();
  void start(UnitState& u);
  void complete_until(std::size_t count);
  void wait_input_free(std::size_t order_index);

  Mesh mesh_;
  CommStats& stats_;
  double divisor_;
  bool sync_ = true;
  std::vector<UnitState> units_;
  std::vector<int> order_;           // units with trainable segments
  std::vector<int> finished_order_;  // as observed, until the order is agreed
  bool order_agreed_ = false;
  std::size_t next_ = 0;       // order_[next_] starts next
  std::size_t completed_ = 0;  // order_[completed_] is the oldest that is not waited for
  std::vector<Flight> flights_;

  std::shared_ptr<comm::SharedRegion> region_;
  std::int64_t root_slot_bytes_ = 0, slot_bytes_ = 0, rank_bytes_ = 0;
};

}  // namespace tessera::fsdp
