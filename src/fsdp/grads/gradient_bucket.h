#pragma once
// One bucket of gradients: its segments, the buffers in which a backward accumulates, and how far it is.
//
// Note [Buckets]
// A bucket is what is reduced at once: the trainable segments of a unit; but each segment of the root that is `alone`
// (a large embedding, an output head) is a bucket of its own, for the root is open during the whole backward and such a
// parameter is done long before.
//
// Note [States of a bucket]
//   kIdle -> kExpected -> kOpen -> kFinished -> kReducing -> kIdle
// kExpected: its unit ran in the forward, so reductions behind it in the order wait for it. kOpen: it holds gradients.
// kFinished: nothing more comes in this backward. kReducing: its reduction was started; the end of the backward makes
// it kIdle. Steps may be left out: a bucket whose unit did not run goes from kIdle to kReducing, with zeros. After a
// backward that does not synchronise it stays kOpen, or kExpected.
//
// Note [What trains]
// Modules may be frozen after they were sharded, for a while: no gradients come then. Ranks reduce zeros all the same,
// but leaves of which no parameter requires grad get no gradients, so that optimizers pass them over as they do outside
// of sharding. Parameters of one leaf are frozen together (Unit::check_what_trains()).
//
// Note [Gradients of a device]
// Buffers lie in the host's memory. A gradient that a device computed is copied into pinned ones by a stream of its own
// and held until that is done; whoever reads a buffer lands the copies first. Into other memory, and where gradients
// are added up, the caller waits.
#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <vector>

#include "fsdp/plan/flat_layout.h"
#include "tensor/copy_stream.h"
#include "tensor/gradient_place.h"

namespace tessera::fsdp {

/// A trainable segment: its layout, its sharded leaf, the dtype of its reduction.
struct TrainableSegment {
  Segment layout;
  at::Tensor leaf;
  at::ScalarType reduce = at::kFloat;
  int position = 0;  // of its first parameter in the order of registration; -1: to be reduced last
  std::string unit;  // its name, for people
  std::vector<at::Tensor> parameters = {};  // the module's own; none: unknown

  /// Some of its parameters require grad.
  bool trains() const;
};

enum class BucketState { kIdle, kExpected, kOpen, kFinished, kReducing };

class GradientBucket {
 public:
  /// Where the buffers lie: in memory of their own, or where the transport reads them.
  enum class Place { kPrivate, kTransport };

  /// to_host: see Note [Gradients of a device]; null: gradients are made where the buffers lie.
  GradientBucket(std::size_t index, int unit, bool alone, tensor::CopyStream* to_host = nullptr)
      : index(index), unit(unit), alone(alone), to_host_(to_host) {}
  GradientBucket(GradientBucket&&) = default;
  void add_segment(TrainableSegment segment);

  const std::size_t index;  // among the buckets
  const int unit;
  const bool alone;
  std::vector<TrainableSegment> segments;
  BucketState state = BucketState::kIdle;
  at::Tensor late;  // 1-D [numel] of the only segment: what came after the reduction; or undefined

  const std::string& unit_name() const { return segments.front().unit; }
  int position() const { return segments.front().position; }
  bool reducing() const { return state == BucketState::kReducing; }
  /// Reductions behind it wait for it.
  bool awaited() const { return state == BucketState::kExpected || state == BucketState::kOpen; }
  void expect() {
    if (state == BucketState::kIdle) state = BucketState::kExpected;
  }

  /// 1-D [numel] for each segment, in the dtype of contributions; none: no gradient has come.
  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  bool has_buffers() const { return !buffers_.empty(); }
  Place place() const { return place_; }
  /// Uninitialised memory; gaps between parameters become zero.
  void open(std::vector<at::Tensor> buffers, Place place);
  /// The same values, gaps too, where the transport reads them; or in private memory, in the dtype of reductions.
  void move_to_transport(const std::vector<at::Tensor>& places);
  void leave_transport();
  /// No buffers: the reduction holds them, or nobody.
  void close() { buffers_.clear(), place_ = Place::kPrivate; }

  /// Of an open bucket; by segment and entry of the segment. accumulate() adds to what has come for this entry.
  void accumulate(std::size_t segment, std::size_t entry, const at::Tensor& grad);
  /// Waits for the copies that are on their way into the buffers.
  void land();
  /// See tensor::GradientPlace; null: the entry is being prepared. commit(): false when what was prepared had to leave.
  std::shared_ptr<tensor::PreparedGradient> reserve(std::size_t segment, std::size_t entry);
  bool commit(std::size_t segment, std::size_t entry, const tensor::PreparedGradient& prepared);
  /// What was prepared here and not committed goes elsewhere.
  void evict();
  void accumulate_late(const at::Tensor& grad);
  /// The only entry of the only segment becomes what came late.
  void take_late();
  /// Zeros where nothing came; the next backward starts anew.
  void fill_missing();
  void forget() noexcept;

 private:
  struct EntryState {
    bool written = false;
    std::weak_ptr<tensor::PreparedGradient> prepared;  // in the buffer and not committed yet
  };
  /// A copy on its way, and what it reads.
  struct Leaving {
    c10::Event done;
    at::Tensor grad;
  };
  at::Tensor view_of(std::size_t segment, std::size_t entry) const;
  void send(const at::Tensor& view, const at::Tensor& grad);

  std::vector<at::Tensor> buffers_;
  std::vector<std::vector<EntryState>> entries_;  // by segment
  Place place_ = Place::kPrivate;
  tensor::CopyStream* to_host_;
  std::deque<Leaving> leaving_;  // in the order of the stream
};

}  // namespace tessera::fsdp
