#pragma once
// Gradients of all units: accumulated in buckets (gradient_bucket.h), reduced in one order (reduction_order.h) by a
// transport (gradient_transport.h) to this rank's slices.
//
// Note [Order of reductions]
// Every bucket is reduced exactly once in each synchronising backward, in one order that all ranks share whatever their
// data made them run: a bucket that finishes early waits for its turn, one that did not run contributes zeros. The
// order starts as reverse registration and becomes, after the first backward, the order in which rank 0 finished. A
// gradient that arrives after its bucket was reduced (a parameter of the root that nested backward passes reach several
// times) is reduced in a second round at the end of the backward, if any rank has one. A reduction is waited for when
// the next one has started; under hybrid strategies the sum across replicas then starts, and is waited for one later.
// Where gradients come from a device, a bucket is not reduced before the next one has finished: its copies to the host
// go on while the device computes that one, and the host, which waits for them, has told the device what to do.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/grads/gradient_bucket.h"
#include "fsdp/grads/gradient_transport.h"
#include "fsdp/grads/reduction_order.h"
#include "fsdp/plan/mesh.h"
#include "tensor/copy_stream.h"
#include "tensor/gradient_place.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

/// One parameter's gradient: by unit, trainable segment of the unit, entry of the segment.
struct GradientId {
  int unit = 0, segment = 0, entry = 0;
};

/// Whose memory gradients take: of that which steps keep (tessera/tensor/allocator.h), only what is mapped and free
/// there, or their own. Their own goes back to the system when they are freed.
enum class SumMemory { kOfSteps, kFreeOfSteps, kOwn };

class GradientReducer {
 public:
  /// made_on: another device than where they are summed; or the CPU.
  GradientReducer(Mesh mesh, CommStats& stats, SumMemory sums, at::Device made_on = at::kCPU);
  ~GradientReducer();

  /// Units in registration order, the root first; without trainable segments too. Collective.
  void set_units(std::vector<std::vector<TrainableSegment>> units, std::unique_ptr<GradientTransport> transport);

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
  /// Between backward passes: what those that did not communicate have left of this unit.
  void forget_unsynced(int unit) noexcept;

  std::int64_t buffer_bytes() const;  // the transport's of this rank and private buffers, now
  std::int64_t shard_bytes() const;   // gradients of the slices that lie elsewhere, now

 private:
  struct Flight;
  struct Place {
    std::size_t bucket, segment;
  };

  void make_buckets(std::vector<std::vector<TrainableSegment>> units);
  const Place& place_of(GradientId id) const;
  GradientBucket& bucket_of(GradientId id) { return buckets_[place_of(id).bucket]; }
  GradientBucket& in_order(std::size_t position) { return buckets_[order_.bucket(position)]; }
  void choose_width();
  void open(GradientBucket& b);
  bool place_is_free(const GradientBucket& b) const;
  std::vector<at::Tensor> take_place(GradientBucket& b);
  void finish(GradientBucket& b);
  void start_ready(const GradientBucket& newest);
  void start_next();
  void start(GradientBucket& b, Flight& flight);
  void start_segment(GradientBucket& b, std::size_t segment, Flight& flight);
  at::Tensor empty_sum(const GradientBucket& b, std::size_t segment) const;
  void shard_until(std::size_t count);
  void complete_until(std::size_t count);
  void shard(Flight& flight);
  void complete(Flight& flight);
  void wait_input_free(std::size_t position);
  void check_same_training();
  void reduce_late();
  void reduce_late(GradientBucket& b);

  Mesh mesh_;
  CommStats& stats_;
  double divisor_;
  SumMemory sums_;
  bool sync_ = true;
  bool holds_unsynced_ = false;                  // sums of backward passes that did not communicate
  std::unique_ptr<tensor::CopyStream> to_host_;  // null: gradients are made where they are summed
  std::vector<GradientBucket> buckets_;
  std::vector<std::vector<int>> buckets_of_unit_;
  std::vector<std::vector<Place>> places_;  // by unit and trainable segment
  std::unique_ptr<GradientTransport> transport_;
  ReductionOrder order_;
  std::string trains_;           // by segment, at the end of the last backward, as all ranks had it
  std::vector<Flight> flights_;  // by position in the order
  std::size_t next_ = 0;         // the position that starts next
  std::size_t sharded_ = 0;      // the oldest position that is not waited for inside the shard group
  std::size_t completed_ = 0;    // and across replicas
};

}  // namespace tessera::fsdp
