// Matrices of another source, transposed.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "quant/packed_source.h"
#include "quant/source_table.h"
#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

class TransposedSource final : public io::TensorSource {
 public:
  TransposedSource(std::shared_ptr<const io::TensorSource> base, std::set<std::string> names)
      : base_(std::move(base)), names_(std::move(names)) {
    for (auto info : base_->tensors()) {
      if (names_.contains(info.name)) {
        TESSERA_CHECK(info.shape.size() == 2, "'" + info.name + "' is no matrix");
        std::swap(info.shape[0], info.shape[1]);
        info.packed_bytes = 0;
      }
      table_.add(std::move(info));
    }
    table_.sort();
  }
  const std::vector<io::TensorInfo>& tensors() const override { return table_.all(); }
  const io::TensorInfo* find(const std::string& name) const override { return table_.find(name); }
  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    if (!names_.contains(name)) return base_->read(name, begin, std::move(out));
    const auto& info = *find(name);
    if (begin < 0 || begin > info.numel() || out.numel() > info.numel() - begin)
      throw DataError(fmt::format("{}: tensor '{}' has {} elements; asked for [{}, {})", info.file, name, info.numel(),
                                  begin, begin + out.numel()),
                      info.file);
    const std::lock_guard lock(mutex_);
    if (last_ != name) {
      last_ = name;
      values_ = io::read_tensor(*base_, name).t().contiguous().view(-1);
    }
    out.copy_(values_.narrow(0, begin, out.numel()));
  }
  std::optional<io::MappedTensor> map(const std::string& name) const override {
    return names_.contains(name) ? std::nullopt : base_->map(name);
  }
  std::optional<io::MappedTensor> map_bytes(const std::string& name) const override {
    return names_.contains(name) ? std::nullopt : base_->map_bytes(name);
  }
  void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    if (names_.contains(name)) return TensorSource::read_bytes(name, begin, std::move(out));
    base_->read_bytes(name, begin, std::move(out));
  }

 private:
  std::shared_ptr<const io::TensorSource> base_;
  std::set<std::string> names_;
  SourceTable table_;
  mutable std::mutex mutex_;
  mutable std::string last_;  // whose values are kept
  mutable at::Tensor values_;
};

}  // namespace

std::shared_ptr<const io::TensorSource> transposed_source(std::shared_ptr<const io::TensorSource> base,
                                                          std::set<std::string> names) {
  if (names.empty()) return base;
  return std::make_shared<TransposedSource>(std::move(base), std::move(names));
}

}  // namespace tessera::quant
