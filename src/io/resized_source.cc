#include "io/resized_source.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>

#include "io/tensor_table.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

class ResizedSource final : public TensorSource {
 public:
  ResizedSource(std::shared_ptr<const TensorSource> base, std::map<std::string, std::int64_t> rows)
      : base_(std::move(base)), rows_(std::move(rows)) {
    for (auto info : base_->tensors()) {
      if (const auto it = rows_.find(info.name); it != rows_.end()) {
        TESSERA_CHECK(!info.shape.empty() && it->second >= info.shape[0], "'" + info.name + "' may only grow");
        info.packed_bytes = 0;
        info.shape[0] = it->second;
      }
      table_.add(std::move(info));
    }
    table_.sort();
  }
  const std::vector<TensorInfo>& tensors() const override { return table_.all(); }
  const TensorInfo* find(const std::string& name) const override { return table_.find(name); }
  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    if (!rows_.contains(name)) return base_->read(name, begin, out);
    const TensorInfo& stored = *base_->find(name);
    const std::int64_t end = begin + out.numel(), old = std::clamp(stored.numel(), begin, end);
    if (old > begin) base_->read(name, begin, out.narrow(0, 0, old - begin));
    if (old == end) return;
    const std::int64_t width = stored.numel() / std::max<std::int64_t>(1, stored.shape[0]);
    const at::Tensor row = mean_row(stored, width);
    for (std::int64_t at = old; at < end;) {
      const std::int64_t column = at % width, n = std::min(width - column, end - at);
      out.narrow(0, at - begin, n).copy_(row.narrow(0, column, n));
      at += n;
    }
  }
  std::optional<MappedTensor> map(const std::string& name) const override {
    return rows_.contains(name) ? std::nullopt : base_->map(name);
  }
  void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    if (rows_.contains(name)) return TensorSource::read_bytes(name, begin, std::move(out));
    base_->read_bytes(name, begin, std::move(out));
  }
  std::optional<MappedTensor> map_bytes(const std::string& name) const override {
    return rows_.contains(name) ? std::nullopt : base_->map_bytes(name);
  }

 private:
  at::Tensor mean_row(const TensorInfo& stored, std::int64_t width) const {
    const std::lock_guard lock(mutex_);
    at::Tensor& mean = means_[stored.name];
    if (!mean.defined()) {
      const at::Tensor all = at::empty({stored.numel()}, at::kFloat);
      base_->read(stored.name, 0, all);
      mean = all.view({-1, width}).mean(0);
    }
    return mean;
  }

  std::shared_ptr<const TensorSource> base_;
  std::map<std::string, std::int64_t> rows_;
  TensorTable table_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, at::Tensor> means_;
};

}  // namespace

std::shared_ptr<TensorSource> resized_source(std::shared_ptr<const TensorSource> base,
                                             std::map<std::string, std::int64_t> rows) {
  return std::make_shared<ResizedSource>(std::move(base), std::move(rows));
}

}  // namespace tessera::io
