#include "fsdp/plan/memory_form.h"

#include "comm/device/pinned_region.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

/// Memory of a group that is a file.
class FileRegion final : public comm::SharedRegion {
 public:
  FileRegion(std::shared_ptr<std::byte> memory, std::int64_t size_bytes)
      : memory_(std::move(memory)), size_bytes_(size_bytes) {}
  std::byte* data() const noexcept override { return memory_.get(); }
  std::int64_t size_bytes() const noexcept override { return size_bytes_; }

 private:
  std::shared_ptr<std::byte> memory_;
  std::int64_t size_bytes_;
};

/// Collective. Rank 0 makes the file; it has no name any more when this returns.
std::shared_ptr<comm::SharedRegion> map_file_region(tensor::DiskStore& offload, comm::Communicator& group,
                                                    std::int64_t bytes) {
  std::string path;
  if (group.rank() == 0) path = offload.make_file(bytes);
  path = group.broadcast_object(path, 0);
  try {
    auto region = std::make_shared<FileRegion>(offload.map_file(path, bytes), bytes);
    group.barrier();
    if (group.rank() == 0) tensor::DiskStore::forget_file(path);
    return region;
  } catch (...) {
    tensor::DiskStore::forget_file(path);
    throw;
  }
}

/// Null: gather by copy.
std::shared_ptr<comm::SharedRegion> map_region(Runtime& runtime, std::int64_t bytes) {
  const auto form = runtime.options().gather;
  if (form == GatherForm::kCopy && !runtime.always_whole()) return nullptr;
  auto& group = *runtime.mesh().shard;
  auto region = group.map_shared(runtime.offload() ? 1 : bytes);
  if (region && runtime.offload()) region = map_file_region(*runtime.offload(), group, bytes);
  if (!runtime.offload()) region = comm::pinned(std::move(region), runtime.options().device);
  if (!region && form == GatherForm::kShared)
    throw ConfigError(
        "gather form 'shared': the ranks of backend '" + group.backend() + "' share no memory; use 'auto' or 'copy'",
        "gather");
  return region;
}

class SharedForm final : public MemoryForm {
 public:
  SharedForm(const Runtime& runtime, std::shared_ptr<comm::SharedRegion> region)
      : mesh_(runtime.mesh()),
        device_(runtime.options().device),
        offload_(runtime.offload().get()),
        region_(std::move(region)) {}
  bool shared() const override { return true; }
  std::unique_ptr<ParameterStore> make_store(const std::vector<Segment>& segments) override {
    auto store = make_shared_store(segments, mesh_.shard->rank(), region_, used_, offload_);
    used_ += shared_store_bytes(segments);
    return store;
  }
  std::unique_ptr<GradientTransport> make_transport() const override { return make_slot_transport(mesh_, device_); }

 private:
  const Mesh& mesh_;
  at::Device device_;
  tensor::OffloadStore* offload_;
  std::shared_ptr<comm::SharedRegion> region_;
  std::int64_t used_ = 0;  // bytes of the region
};

class CopyForm final : public MemoryForm {
 public:
  explicit CopyForm(Runtime& runtime) : runtime_(runtime) {}
  bool shared() const override { return false; }
  std::unique_ptr<ParameterStore> make_store(const std::vector<Segment>& segments) override {
    return make_copy_store(segments, runtime_.mesh().shard, runtime_.meter(), runtime_.offload().get());
  }
  std::unique_ptr<GradientTransport> make_transport() const override {
    return make_reduce_scatter_transport(runtime_.mesh());
  }

 private:
  Runtime& runtime_;
};

class DeviceForm final : public MemoryForm {
 public:
  explicit DeviceForm(Runtime& runtime) : runtime_(runtime) {}
  bool shared() const override { return false; }
  std::unique_ptr<ParameterStore> make_store(const std::vector<Segment>& segments) override {
    const auto& shard = runtime_.mesh().shard;
    const auto device = runtime_.options().device;
    if (shard->size() == 1) return make_device_store(segments, device, runtime_.device_meter());
    return make_copy_store(segments, shard, runtime_.device_meter(), nullptr, device);
  }
  std::unique_ptr<GradientTransport> make_transport() const override {
    return runtime_.mesh().shard->size() == 1 ? make_device_transport()
                                              : make_reduce_scatter_transport(runtime_.mesh());
  }

 private:
  Runtime& runtime_;
};

/// What stays on a device cannot be offloaded or shared.
void check_resident(const Runtime& runtime) {
  const auto& options = runtime.options();
  const auto refuse = [&](bool asked, const std::string& what, const std::string& remedy) {
    if (asked)
      throw ConfigError("parameters that stay on device '" + options.device.str() +
                            "' (fsdp_offload_params: false): " + what + "; " + remedy,
                        "fsdp_offload_params");
  };
  refuse(!options.offload_folder.empty(), "fsdp_offload_folder moves them to a disk",
         "drop it, or set fsdp_offload_params: true");
  refuse(options.gather != GatherForm::kAuto, "gather forms are for host memory",
         "leave it 'auto', or set fsdp_offload_params: true");
}

}  // namespace

std::unique_ptr<MemoryForm> choose_memory_form(Runtime& runtime, std::int64_t store_bytes) {
  if (runtime.resident()) {
    check_resident(runtime);
    return std::make_unique<DeviceForm>(runtime);
  }
  constexpr std::int64_t kNeverEmpty = 64;  // even a model that is mapped altogether has a region
  if (auto region = map_region(runtime, kNeverEmpty + store_bytes))
    return std::make_unique<SharedForm>(runtime, std::move(region));
  return std::make_unique<CopyForm>(runtime);
}

}  // namespace tessera::fsdp
