#include "fsdp/plan/memory_form.h"

#include "tensor/home.h"
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
std::shared_ptr<comm::SharedRegion> map_file_region(tensor::DiskHome& home, comm::Communicator& group,
                                                    std::int64_t bytes) {
  std::string path;
  if (group.rank() == 0) path = home.make_file(bytes);
  path = group.broadcast_object(path, 0);
  try {
    auto region = std::make_shared<FileRegion>(home.map_file(path, bytes), bytes);
    group.barrier();
    if (group.rank() == 0) tensor::DiskHome::forget_file(path);
    return region;
  } catch (...) {
    tensor::DiskHome::forget_file(path);
    throw;
  }
}

/// Null: gather by copy.
std::shared_ptr<comm::SharedRegion> map_region(Runtime& runtime, std::int64_t bytes) {
  const auto form = runtime.options().gather;
  if (form == GatherForm::kCopy && !runtime.always_whole()) return nullptr;
  auto& group = *runtime.mesh().shard;
  auto region = group.map_shared(runtime.home() ? 1 : bytes);
  if (region && runtime.home()) region = map_file_region(*runtime.home(), group, bytes);
  if (!region && form == GatherForm::kShared)
    throw ConfigError(
        "gather form 'shared': the ranks of backend '" + group.backend() + "' share no memory; use 'auto' or 'copy'",
        "gather");
  return region;
}

class SharedForm final : public MemoryForm {
 public:
  SharedForm(const Runtime& runtime, std::shared_ptr<comm::SharedRegion> region)
      : mesh_(runtime.mesh()), home_(runtime.home().get()), region_(std::move(region)) {}
  bool shared() const override { return true; }
  std::unique_ptr<ParameterStore> make_store(const std::vector<Segment>& segments) override {
    auto store = make_shared_store(segments, mesh_.shard->rank(), region_, used_, home_);
    used_ += shared_store_bytes(segments);
    return store;
  }
  std::unique_ptr<GradientTransport> make_transport() const override { return make_slot_transport(mesh_); }

 private:
  const Mesh& mesh_;
  tensor::Home* home_;
  std::shared_ptr<comm::SharedRegion> region_;
  std::int64_t used_ = 0;  // bytes of the region
};

class CopyForm final : public MemoryForm {
 public:
  explicit CopyForm(Runtime& runtime) : runtime_(runtime) {}
  bool shared() const override { return false; }
  std::unique_ptr<ParameterStore> make_store(const std::vector<Segment>& segments) override {
    return make_copy_store(segments, runtime_.mesh().shard, runtime_.meter(), runtime_.home().get());
  }
  std::unique_ptr<GradientTransport> make_transport() const override {
    return make_reduce_scatter_transport(runtime_.mesh());
  }

 private:
  Runtime& runtime_;
};

}  // namespace

std::unique_ptr<MemoryForm> choose_memory_form(Runtime& runtime, std::int64_t store_bytes) {
  constexpr std::int64_t kNeverEmpty = 64;  // even a model that is mapped altogether has a region
  if (auto region = map_region(runtime, kNeverEmpty + store_bytes))
    return std::make_unique<SharedForm>(runtime, std::move(region));
  return std::make_unique<CopyForm>(runtime);
}

}  // namespace tessera::fsdp
