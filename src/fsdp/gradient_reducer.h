#pragma once
// Gradients of all units: accumulated in flat buffers, reduced bucket by bucket to this rank's slices.
//
// Note [Buckets]
// A bucket is what is reduced at once: the trainable segments of a unit; but each segment of the root that is `alone`
// (a large embedding, an output head) is a bucket of its own, for the root is open during the whole backward and such a
// parameter is done long before.
//
// Note [Order of reductions]
// Every bucket is reduced exactly once in each synchronising backward, in one order that all ranks share whatever their
// data made them run: a bucket that finishes early waits for its turn, one that did not run contributes zeros. The
// order starts as reverse registration and becomes, after the first backward, the order in which rank 0 finished. A
// gradient that arrives after its bucket was reduced (a parameter of the root that nested backward passes reach several
// times) is reduced in a second round at the end of the backward, if any rank has one.
//
// Note [Slots]
// With shared memory a rank's contributions must lie where its peers look for them (fsdp/gradient_slots.h). The buckets
// take turns in a ring, but for the root's rest, which is open during the whole backward, and a parameter that is
// registered before the units and larger than the ring that they need: it may be tied to the output head and be open as
// long. A slot is written only when the reduction of its previous user has started here and its readers are done; else
// the bucket accumulates privately and copies when its turn comes. In a slot outside the ring that is as wide as sums
// are, the sum of this rank's slice stays where its own contribution was, until the next backward needs the slot.
//
// Note [Dtype of contributions]
// Peers read a slot once, so it holds gradients as they were computed, in 16 bits where the unit computes in 16 bits;
// what a parameter gets several times in one backward (a tied table) is added up there as autograd would. They are
// summed over ranks in the dtype of reductions. What is gathered over several backward passes is summed in the dtype of
// reductions before, too; ranks that differ in this are told by the reduction itself. The slots of both cases are other
// places in the same memory, of which only what is used exists; no gradient stays in a slot from a backward without
// reductions to the next. The root's rest, which is small and may hold what every block adds to, is summed in the dtype
// of reductions in any case, and so is the table with a slot of its own of a rank that shares with nobody: the sum
// needs the room.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/flat_layout.h"
#include "fsdp/gradient_slots.h"
#include "fsdp/mesh.h"
#include "tensor/gradient_place.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

/// A trainable segment: its layout, its sharded leaf, the dtype of its reduction.
struct TrainableSegment {
  Segment layout;
  at::Tensor leaf;
  at::ScalarType reduce = at::kFloat;
  int position = 0;  // of its first parameter in the order of registration; -1: to be reduced last
};

/// One parameter's gradient: by unit, trainable segment of the unit, entry of the segment.
struct GradientId {
  int unit = 0, segment = 0, entry = 0;
};

class GradientReducer {
 public:
  /// sums_leave: the memory of gradients goes back to the system when they are freed; else later steps use it again.
  GradientReducer(Mesh mesh, CommStats& stats, bool sums_leave);
  ~GradientReducer();

  /// Units in registration order, the root first; without trainable segments too. Collective when `shared_memory`.
  void set_units(std::vector<std::vector<TrainableSegment>> units, bool shared_memory);

  void set_divisor(double divisor) { divisor_ = divisor; }
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }

  /// The unit runs in the coming backward: its reduction waits for it, or for the end.
  void expect(int unit);
  void accumulate(GradientId id, const at::Tensor& grad);
  /// Memory for a gradient that its operation writes itself, 1-D, and its being there; see tensor::GradientPlace.
  std::shared_ptr<tensor::PreparedGradient> reserve(GradientId id);
  void commit(GradientId id, tensor::PreparedGradient& prepared);
  /// Nothing more comes for this parameter in this backward.
  void parameter_finished(GradientId id);
  void unit_finished(int unit);
  /// The end of backward. Collective when synchronising: afterwards all leaves have their gradients.
  void backward_finished();
  /// A backward that threw: forgets what it left.
  void abandon() noexcept;

  std::int64_t buffer_bytes() const;  // slots of this rank and private buffers, now
  std::int64_t shard_bytes() const;   // gradients of the slices that lie elsewhere, now

 private:
  struct Bucket;
  struct Flight;
  struct Place {
    std::size_t bucket, segment;
  };

  void make_buckets(std::vector<std::vector<TrainableSegment>> units);
  void allocate_slots();
  void place_in_order();
  void agree_on_order();
  const Place& place_of(GradientId id) const;
  Bucket& bucket_of(GradientId id);
  at::Tensor view_of(GradientId id);
  bool reduced(const Bucket& b) const;
  bool may_use_slot(const Bucket& b) const;
  SlotWidth width() const { return sync_ && !holds_unsynced_ ? SlotWidth::kNarrow : SlotWidth::kWide; }
  const RingSlot& slot_of(const Bucket& b) const;
  at::ScalarType contribution_dtype(const Bucket& b, std::size_t segment) const;
  at::Tensor slot_view(const Bucket& b, std::size_t segment, int rank) const;
  at::Tensor own_slice(const Bucket& b, std::size_t segment) const;
  bool sums_stay_in_slot(const Bucket& b, std::size_t segment) const;
  bool holds_sum(const Bucket& b, std::size_t segment) const;
  at::Tensor empty_sum(const Bucket& b, std::size_t segment) const;
  void vacate_slot(Bucket& b);
  void take_turn(const Bucket& b);
  void leave_slots();
  void open_buffers(Bucket& b);
  void fill_missing(Bucket& b);
  void move_to_slot(Bucket& b);
  void finish(Bucket& b);
  void start_ready();
  void start_next();
  void start(Bucket& b, Flight& flight);
  void complete_until(std::size_t count);
  void complete(Flight& flight);
  void wait_input_free(std::size_t order_index);
  void reduce_late();

  Mesh mesh_;
  CommStats& stats_;
  double divisor_;
  bool sums_leave_;
  bool sync_ = true;
  bool holds_unsynced_ = false;  // sums of backward passes that did not communicate
  std::vector<Bucket> buckets_;
  std::vector<std::vector<int>> buckets_of_unit_;
  std::vector<std::vector<Place>> places_;  // by unit and trainable segment
  std::vector<int> order_;                  // of buckets
  std::vector<int> finished_order_;         // as observed, until the order is agreed
  bool order_agreed_ = false;
  std::size_t next_ = 0;       // order_[next_] starts next
  std::size_t completed_ = 0;  // order_[completed_] is the oldest that is not waited for
  std::vector<Flight> flights_;

  std::shared_ptr<comm::SharedRegion> region_;
  GradientSlots slots_;  // of buckets, by their index
  bool wide_slots_used_ = false;
};

}  // namespace tessera::fsdp
