#pragma once
// How contributions to a bucket's sums reach the ranks that own the slices. A model has one form for all its buckets,
// chosen together with the form of its ParameterStore (fsdp/plan/memory_form.h):
//  - shared slots: peers read contributions where they lie, in memory that all ranks of a host address; a reduction is
//    a sum over what is read there (gradient_slots.h);
//  - reduce-scatter: contributions are private, the communicator moves them while the caller computes;
//  - device: contributions and sums stay on the device that computes them.
//
// Note [Slots]
// With shared memory a rank's contributions must lie where its peers look for them (fsdp/grads/gradient_slots.h). The
// buckets take turns in a ring, but for the root's rest, which is open during the whole backward, and a parameter that
// is registered before the units and larger than the ring that they need: it may be tied to the output head and be open
// as long. A slot is written only when the reduction of its previous user has started here and its readers are done;
// else the bucket accumulates privately and copies when its turn comes. In a slot outside the ring that is as wide as
// sums are, the sum of this rank's slice stays where its own contribution was, until the next backward needs the slot.
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

#include "fsdp/grads/gradient_bucket.h"
#include "fsdp/grads/gradient_slots.h"
#include "fsdp/plan/mesh.h"

namespace tessera::fsdp {

class GradientTransport {
 public:
  virtual ~GradientTransport() = default;

  /// Once, before all else. Collective.
  virtual void prepare(const std::vector<GradientBucket>& /*buckets*/) {}
  /// Buckets, by index, in the order of their reductions. Between backward passes.
  virtual void set_order(const std::vector<int>& /*order*/) {}
  /// Of the contributions from now on. Between backward passes.
  virtual void set_width(SlotWidth /*width*/) {}

  /// Contributions must lie in the transport's memory when their reduction starts.
  virtual bool has_places() const = 0;
  /// Position in the order of the bucket that used this one's place before: its readers must be done; -1: none.
  virtual int previous_user(const GradientBucket& /*bucket*/) const { return -1; }
  /// This rank's place for a bucket: for each segment 1-D [numel], contents undefined. A sum kept there moves out.
  virtual std::vector<at::Tensor> take_place(GradientBucket& /*bucket*/) { return {}; }
  virtual at::ScalarType contribution_dtype(const GradientBucket& bucket, std::size_t segment) const = 0;

  /// Memory in the place for the sum of this rank's slice, 1-D [slice_numel]; undefined: it needs some of its own.
  virtual at::Tensor place_of_sum(const GradientBucket& /*bucket*/, std::size_t /*segment*/) const { return {}; }
  /// The segment's gradient lies there now.
  virtual bool holds_sum(const GradientBucket& /*bucket*/, std::size_t /*segment*/) const { return false; }

  /// Starts: out, 1-D [slice_numel], becomes the scaled sum over the ranks' contributions to this rank's slice.
  virtual std::unique_ptr<comm::Work> reduce(const GradientBucket& bucket, std::size_t segment, const at::Tensor& out,
                                             comm::ReduceOptions how) = 0;

  /// Of the transport's memory on this rank, as far as it was used.
  virtual std::int64_t bytes() const { return 0; }
};

/// Over the ranks of mesh.shard, which must be able to map memory together. device: where gradients are made.
std::unique_ptr<GradientTransport> make_slot_transport(const Mesh& mesh, at::Device device);
std::unique_ptr<GradientTransport> make_reduce_scatter_transport(const Mesh& mesh);
/// For a rank that holds whole parameters on a device: contributions and sums stay there.
std::unique_ptr<GradientTransport> make_device_transport();

}  // namespace tessera::fsdp
