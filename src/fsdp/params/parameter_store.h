#pragma once
// The memory of one unit's segments on this rank: its slices, and the whole segments while they are gathered.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fsdp/params/split_master.h"
#include "fsdp/plan/flat_layout.h"
#include "tensor/offload_store.h"
#include "tessera/comm/communicator.h"

namespace tessera::fsdp {

/// Bytes of gathered copies, for all units of a model.
struct GatherMeter {
  std::int64_t now = 0, peak = 0;
  void add(std::int64_t bytes) {
    now += bytes;
    if (now > peak) peak = now;
  }
};

class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  /// 1-D [slice_numel] in shard_dtype; a leaf that requires grad when the segment is trainable.
  const at::Tensor& shard(std::size_t segment) const { return shards_[segment]; }
  std::size_t segments() const { return shards_.size(); }
  /// The shard's values, once join_masters() was called; they stay as long as somebody holds them.
  at::Tensor values(std::size_t segment) const {
    const bool split = segment < masters_.size() && masters_[segment];
    return split ? masters_[segment]->values() : shards_[segment].detach();
  }

  virtual void start_gather() = 0;
  virtual void finish_gather() = 0;
  /// 1-D [numel] in the compute dtype, between finish_gather() and release().
  virtual at::Tensor whole(std::size_t segment) const = 0;
  virtual void release() = 0;
  /// True when whole() no longer shows what the shards hold.
  virtual bool stale() const = 0;

  /// Some shard was written since the last publish().
  virtual bool needs_publish() const { return false; }
  /// Makes this rank's slices visible to its peers, who see them after the next fence.
  virtual void publish() {}
  /// An optimizer that steps now writes where peers read.
  virtual bool steps_in_place() const { return false; }
  /// Gives shards that are kept in halves their memory, until they are published or settle() finds nothing written.
  virtual void join_masters() {}
  virtual void settle() {}
  const std::vector<std::shared_ptr<SplitMaster>>& split_masters() const { return masters_; }

  /// Offloaded memory of this unit is about to be used, or is not needed for a while.
  virtual void fetch(const tensor::OffloadStore& /*offload*/) const {}
  virtual void evict(const tensor::OffloadStore& /*offload*/) const {}

  /// Bytes of slices and of private masters on this rank.
  virtual std::int64_t shard_bytes() const;
  virtual const char* form() const = 0;
  /// whole() needs no gather.
  virtual bool always_whole() const = 0;

 protected:
  /// Remembers what a shard holds now; written(): it was written to since then.
  void note_version(std::size_t segment);
  bool written(std::size_t segment) const;

  std::vector<at::Tensor> shards_;
  std::vector<std::shared_ptr<SplitMaster>> masters_;  // by segment, null where a shard is never split; or empty

 private:
  std::vector<std::uint32_t> versions_;  // by segment, as noted
};

/// `offload`: where private slices lie; null: in memory of the device.
at::Tensor allocate_shard(const Segment& segment, tensor::OffloadStore* offload, at::Device device = at::kCPU);

/// Slices are private, in the host's memory or on a device that the group takes tensors of; gathering allocates the
/// whole there and all-gathers into it. offload: of the host's alone.
std::unique_ptr<ParameterStore> make_copy_store(const std::vector<Segment>& segments,
                                                std::shared_ptr<comm::Communicator> group, GatherMeter& meter,
                                                tensor::OffloadStore* offload, at::Device device = at::kCPU);

/// For a rank that holds whole parameters (a group of one): slices are on the device and whole already.
std::unique_ptr<ParameterStore> make_device_store(const std::vector<Segment>& segments, at::Device device,
                                                  GatherMeter& meter);

/// Bytes that make_shared_store() needs of a region.
std::int64_t shared_store_bytes(const std::vector<Segment>& segments);

/// The whole lies in `memory`, which all ranks of the group address: gathering is no work.
std::unique_ptr<ParameterStore> make_shared_store(const std::vector<Segment>& segments, int rank,
                                                  std::shared_ptr<comm::SharedRegion> region, std::int64_t offset,
                                                  tensor::OffloadStore* offload);

}  // namespace tessera::fsdp
