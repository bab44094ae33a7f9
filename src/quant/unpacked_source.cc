// Packed matrices as dense ones.
#include <ATen/ops/empty.h>

#include <mutex>
#include <utility>

#include "io/tensor_table.h"
#include "quant/packed_source.h"

namespace tessera::quant {
namespace {

class UnpackedSource final : public PackedSource {
 public:
  UnpackedSource(std::shared_ptr<const PackedSource> packed, std::set<std::string> dense,
                 std::set<std::string> transposed)
      : packed_(std::move(packed)), dense_(std::move(dense)), transposed_(std::move(transposed)) {
    std::set<std::string> statistics;
    for (const auto& info : packed_->tensors())
      if (const auto codec = dense_.contains(info.name) ? packed_->codec(info.name) : nullptr)
        for (const auto& field : codec->fields(info.shape[0], info.shape[1]))
          if (!field.is_codes()) statistics.insert(field.full_name(info.name));
    for (auto info : packed_->tensors()) {
      if (statistics.contains(info.name)) continue;
      if (transposed_.contains(info.name)) std::swap(info.shape[0], info.shape[1]);
      if (dense_.contains(info.name)) info.packed_bytes = 0;
      table_.add(std::move(info));
    }
    table_.sort();
  }
  std::shared_ptr<const tensor::Codec> codec(const std::string& name) const override {
    return dense_.contains(name) ? nullptr : packed_->codec(name);
  }
  const std::vector<io::TensorInfo>& tensors() const override { return table_.all(); }
  const io::TensorInfo* find(const std::string& name) const override { return table_.find(name); }
  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    if (!transposed_.contains(name)) return packed_->read(name, begin, std::move(out));
    io::check_elements(*find(name), begin, out);
    const std::lock_guard lock(mutex_);
    if (last_ != name) {
      last_ = name;
      values_ = io::read_tensor(*packed_, name).t().contiguous().view(-1);
    }
    out.copy_(values_.narrow(0, begin, out.numel()));
  }
  void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    if (dense_.contains(name)) return TensorSource::read_bytes(name, begin, std::move(out));
    packed_->read_bytes(name, begin, std::move(out));
  }
  std::optional<io::MappedTensor> map(const std::string& name) const override {
    return dense_.contains(name) ? std::nullopt : packed_->map(name);
  }
  std::optional<io::MappedTensor> map_bytes(const std::string& name) const override {
    return dense_.contains(name) ? std::nullopt : packed_->map_bytes(name);
  }

 private:
  std::shared_ptr<const PackedSource> packed_;
  std::set<std::string> dense_, transposed_;
  io::TensorTable table_;
  mutable std::mutex mutex_;
  mutable std::string last_;  // whose values are kept
  mutable at::Tensor values_;
};

}  // namespace

std::shared_ptr<const PackedSource> unpacked_source(std::shared_ptr<const PackedSource> packed,
                                                    std::set<std::string> dense, std::set<std::string> transposed) {
  return std::make_shared<UnpackedSource>(std::move(packed), std::move(dense), std::move(transposed));
}

}  // namespace tessera::quant
