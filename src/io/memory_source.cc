#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>

#include "io/tensor_table.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

class MemorySource final : public TensorSource {
 public:
  explicit MemorySource(std::vector<std::pair<std::string, at::Tensor>> tensors) : tensors_(std::move(tensors)) {
    std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [name, tensor] : tensors_) {
      tensor = tensor.detach().cpu().contiguous();
      table_.add({name, tensor.scalar_type(), tensor.sizes().vec(), "memory"});
    }
  }

  const std::vector<TensorInfo>& tensors() const override { return table_.all(); }
  const TensorInfo* find(const std::string& name) const override { return table_.find(name); }

  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto& held = tensor(name);
    check_elements(*find(name), begin, out);
    out.copy_(held.view({-1}).narrow(0, begin, out.numel()));
  }

  std::optional<MappedTensor> map(const std::string& name) const override {
    auto held = std::make_shared<at::Tensor>(tensor(name));
    return MappedTensor{static_cast<std::byte*>(held->mutable_data_ptr()), held};
  }

 private:
  const at::Tensor& tensor(const std::string& name) const {
    const auto* info = find(name);
    if (!info) throw DataError(fmt::format("tensor '{}' is not among the {} tensors in memory", name, tensors_.size()));
    return tensors_[static_cast<std::size_t>(info - table_.all().data())].second;
  }

  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  TensorTable table_;  // in the order of tensors_
};

}  // namespace

std::shared_ptr<TensorSource> memory_source(std::vector<std::pair<std::string, at::Tensor>> tensors) {
  return std::make_shared<MemorySource>(std::move(tensors));
}

}  // namespace tessera::io
