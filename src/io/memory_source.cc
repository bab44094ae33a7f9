#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>

#include "io/tensor_source.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

class MemorySource final : public TensorSource {
 public:
  explicit MemorySource(std::vector<std::pair<std::string, at::Tensor>> tensors) : tensors_(std::move(tensors)) {
    std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [name, tensor] : tensors_) {
      tensor = tensor.detach().cpu().contiguous();
      infos_.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), "memory"});
    }
  }

  const std::vector<TensorInfo>& tensors() const override { return infos_; }

  const TensorInfo* find(const std::string& name) const override {
    auto it = std::lower_bound(infos_.begin(), infos_.end(), name,
                               [](const TensorInfo& info, const std::string& n) { return info.name < n; });
    return it != infos_.end() && it->name == name ? &*it : nullptr;
  }

  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto flat = tensor(name).view({-1});
    if (begin < 0 || begin > flat.numel() || out.numel() > flat.numel() - begin)
      throw DataError(fmt::format("memory: tensor '{}' has {} elements; asked for [{}, {})", name, flat.numel(), begin,
                                  begin + out.numel()));
    out.copy_(flat.narrow(0, begin, out.numel()));
  }

  std::optional<MappedTensor> map(const std::string& name) const override {
    auto held = std::make_shared<at::Tensor>(tensor(name));
    return MappedTensor{static_cast<std::byte*>(held->mutable_data_ptr()), held};
  }

 private:
  const at::Tensor& tensor(const std::string& name) const {
    const auto* info = find(name);
    if (!info) throw DataError(fmt::format("tensor '{}' is not among the {} tensors in memory", name, infos_.size()));
    return tensors_[static_cast<std::size_t>(info - infos_.data())].second;
  }

  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  std::vector<TensorInfo> infos_;
};

}  // namespace

std::shared_ptr<TensorSource> memory_source(std::vector<std::pair<std::string, at::Tensor>> tensors) {
  return std::make_shared<MemorySource>(std::move(tensors));
}

}  // namespace tessera::io
