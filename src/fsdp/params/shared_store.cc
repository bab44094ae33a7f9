// Gathering without copies: the ranks of a host address one region. Where compute and stored dtype agree the slice in
// the region is the master; else masters are private, and publish() casts them into the region. Of masters in float32
// beside bfloat16 only the bits that the region lacks may be kept.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "fsdp/params/parameter_store.h"

namespace tessera::fsdp {
namespace {

std::int64_t whole_bytes(const Segment& s) {
  return s.numel * static_cast<std::int64_t>(c10::elementSize(s.compute));
}

class SharedStore final : public ParameterStore {
 public:
  SharedStore(const std::vector<Segment>& segments, int rank, std::shared_ptr<comm::SharedRegion> region,
              std::int64_t offset, tensor::OffloadStore* offload)
      : segments_(segments) {
    for (const auto& s : segments_) {
      auto* data = region->data() + offset;
      offset += whole_bytes(s);
      // An optimizer may outlive the model: every view holds the region.
      wholes_.push_back(at::from_blob(data, {s.numel}, [region](void*) {}, at::TensorOptions().dtype(s.compute)));
      auto* own = data + s.slice_numel * rank * static_cast<std::int64_t>(c10::elementSize(s.compute));
      slices_.push_back(at::from_blob(own, {s.slice_numel}, [region](void*) {}, at::TensorOptions().dtype(s.compute)));
      const bool in_place = s.shard_dtype() == s.compute;
      const bool splits = !offload && s.shard_dtype() == at::kFloat && s.compute == at::kBFloat16;
      auto memory = in_place ? slices_.back() : allocate_shard(s, offload);
      masters_.push_back(splits ? std::make_shared<SplitMaster>(memory, slices_.back()) : nullptr);
      shards_.push_back(splits ? masters_.back()->leaf() : std::move(memory));
      shards_.back().set_requires_grad(s.trainable);
      note_version(shards_.size() - 1);
    }
  }

  void start_gather() override {}
  void finish_gather() override {}
  at::Tensor whole(std::size_t segment) const override { return wholes_[segment]; }
  void release() override {}
  bool stale() const override { return false; }

  bool needs_publish() const override {
    for (std::size_t i = 0; i < shards_.size(); ++i)
      if (written(i) || (masters_[i] && masters_[i]->undivided())) return true;
    return false;
  }

  void publish() override {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      if (masters_[i] && (written(i) || masters_[i]->undivided()))
        masters_[i]->divide();
      else if (written(i) && !shards_[i].is_same(slices_[i]))
        slices_[i].copy_(shards_[i]);
      note_version(i);
    }
  }

  bool steps_in_place() const override {
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const bool in_place = shards_[i].is_same(slices_[i]) || (masters_[i] && masters_[i]->halves());
      if (in_place && shards_[i].grad().defined()) return true;
    }
    return false;
  }

  void join_masters() override {
    for (const auto& m : masters_)
      if (m) m->join();
  }
  void settle() override {
    for (const auto& m : masters_)
      if (m) m->settle();
  }

  void fetch(const tensor::OffloadStore& offload) const override {
    for (const auto& whole : wholes_) offload.fetch(whole);
  }
  void evict(const tensor::OffloadStore& offload) const override {
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      offload.evict(wholes_[i]);
      if (!shards_[i].is_same(slices_[i])) offload.evict(shards_[i].detach());
    }
  }

  std::int64_t shard_bytes() const override {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      bytes += static_cast<std::int64_t>(slices_[i].nbytes());
      if (masters_[i])
        bytes += masters_[i]->bytes();
      else if (!shards_[i].is_same(slices_[i]))
        bytes += static_cast<std::int64_t>(shards_[i].nbytes());
    }
    return bytes;
  }
  const char* form() const override { return "shared"; }
  bool always_whole() const override { return true; }

 private:
  std::vector<Segment> segments_;
  std::vector<at::Tensor> wholes_, slices_;
};

}  // namespace

std::int64_t shared_store_bytes(const std::vector<Segment>& segments) {
  std::int64_t bytes = 0;
  for (const auto& s : segments) bytes += whole_bytes(s);
  return bytes;
}

std::unique_ptr<ParameterStore> make_shared_store(const std::vector<Segment>& segments, int rank,
                                                  std::shared_ptr<comm::SharedRegion> region, std::int64_t offset,
                                                  tensor::OffloadStore* offload) {
  return std::make_unique<SharedStore>(segments, rank, std::move(region), offset, offload);
}

}  // namespace tessera::fsdp
