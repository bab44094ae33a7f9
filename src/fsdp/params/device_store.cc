// Slices that lie on the device that computes, of a rank that holds whole parameters.
#include <ATen/core/grad_mode.h>

#include "fsdp/params/parameter_store.h"

namespace tessera::fsdp {
namespace {

/// The slice is the whole. Where units compute in its dtype a gather is no work; else it casts.
class DeviceStore final : public ParameterStore {
 public:
  DeviceStore(const std::vector<Segment>& segments, at::Device device, GatherMeter& meter)
      : segments_(segments), meter_(meter), cast_(segments.size()) {
    for (const auto& s : segments_)
      shards_.push_back(allocate_shard(s, /*offload=*/nullptr, device).set_requires_grad(s.trainable));
  }
  ~DeviceStore() override { DeviceStore::release(); }

  void start_gather() override {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      if (segments_[i].shard_dtype() == segments_[i].compute) continue;
      cast_[i] = shards_[i].detach().to(segments_[i].compute);
      note_version(i);
      meter_.add(static_cast<std::int64_t>(cast_[i].nbytes()));
    }
  }
  void finish_gather() override {}
  at::Tensor whole(std::size_t segment) const override {
    return cast_[segment].defined() ? cast_[segment] : shards_[segment].detach();
  }
  void release() override {
    for (auto& cast : cast_) {
      if (cast.defined()) meter_.add(-static_cast<std::int64_t>(cast.nbytes()));
      cast.reset();
    }
  }
  bool stale() const override {
    for (std::size_t i = 0; i < segments_.size(); ++i)
      if (cast_[i].defined() && written(i)) return true;
    return false;
  }

  const char* form() const override { return "device"; }
  bool always_whole() const override { return false; }

 private:
  std::vector<Segment> segments_;
  GatherMeter& meter_;
  std::vector<at::Tensor> cast_;  // by segment, while it is gathered
};

}  // namespace

std::unique_ptr<ParameterStore> make_device_store(const std::vector<Segment>& segments, at::Device device,
                                                  GatherMeter& meter) {
  return std::make_unique<DeviceStore>(segments, device, meter);
}

}  // namespace tessera::fsdp
