// Gathering by copy: several GPUs, ranks on other hosts.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "fsdp/params/parameter_store.h"

namespace tessera::fsdp {
namespace {

class CopyStore final : public ParameterStore {
 public:
  CopyStore(const std::vector<Segment>& segments, std::shared_ptr<comm::Communicator> group, GatherMeter& meter,
            tensor::OffloadStore* offload, at::Device device)
      : segments_(segments), group_(std::move(group)), meter_(meter), wholes_(segments.size()) {
    for (const auto& s : segments_)
      shards_.push_back(allocate_shard(s, offload, device).set_requires_grad(s.trainable));
  }

  ~CopyStore() override {
    try {
      CopyStore::release();
    } catch (...) {  // a group that is broken has said so already
    }
  }

  void start_gather() override {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      const auto& s = segments_[i];
      wholes_[i] = at::empty({s.numel}, shards_[i].options().dtype(s.compute).requires_grad(false));
      meter_.add(wholes_[i].nbytes());
      auto input = shards_[i].detach();
      if (s.shard_dtype() != s.compute) {
        auto own = wholes_[i].narrow(0, s.slice_numel * group_->rank(), s.slice_numel);
        input = own.copy_(input);
      }
      note_version(i);
      works_.push_back(group_->all_gather(wholes_[i], input));
    }
  }

  void finish_gather() override {
    for (auto& work : works_) work->wait();
  }

  at::Tensor whole(std::size_t segment) const override { return wholes_[segment]; }

  void release() override {
    // Peers may still read this rank's slice: it lies in the buffer that is freed, or an optimizer will write it.
    for (auto& work : works_) work->wait_input_free();
    works_.clear();
    for (auto& whole : wholes_) {
      if (whole.defined()) meter_.add(-static_cast<std::int64_t>(whole.nbytes()));
      whole = at::Tensor();
    }
  }

  bool stale() const override {
    for (std::size_t i = 0; i < segments_.size(); ++i)
      if (wholes_[i].defined() && written(i)) return true;
    return false;
  }

  void fetch(const tensor::OffloadStore& offload) const override {
    for (const auto& shard : shards_) offload.fetch(shard.detach());
  }
  void evict(const tensor::OffloadStore& offload) const override {
    for (const auto& shard : shards_) offload.evict(shard.detach());
  }

  const char* form() const override { return "copy"; }
  bool always_whole() const override { return false; }

 private:
  std::vector<Segment> segments_;
  std::shared_ptr<comm::Communicator> group_;
  GatherMeter& meter_;
  std::vector<at::Tensor> wholes_;
  std::vector<std::unique_ptr<comm::Work>> works_;
};

}  // namespace

std::unique_ptr<ParameterStore> make_copy_store(const std::vector<Segment>& segments,
                                                std::shared_ptr<comm::Communicator> group, GatherMeter& meter,
                                                tensor::OffloadStore* offload, at::Device device) {
  return std::make_unique<CopyStore>(segments, std::move(group), meter, offload, device);
}

}  // namespace tessera::fsdp
