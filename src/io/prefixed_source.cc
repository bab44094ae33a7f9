#include "io/prefixed_source.h"

#include "io/tensor_table.h"

namespace tessera::io {
namespace {

class PrefixedSource final : public TensorSource {
 public:
  PrefixedSource(std::string prefix, std::shared_ptr<const TensorSource> base)
      : prefix_(std::move(prefix)), base_(std::move(base)) {
    for (auto info : base_->tensors()) {
      info.name = prefix_ + info.name;
      table_.add(std::move(info));
    }
    table_.sort();
  }
  const std::vector<TensorInfo>& tensors() const override { return table_.all(); }
  const TensorInfo* find(const std::string& name) const override { return table_.find(name); }
  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    base_->read(inner(name), begin, std::move(out));
  }
  void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    base_->read_bytes(inner(name), begin, std::move(out));
  }
  std::optional<MappedTensor> map(const std::string& name) const override { return base_->map(inner(name)); }
  std::optional<MappedTensor> map_bytes(const std::string& name) const override {
    return base_->map_bytes(inner(name));
  }

 private:
  /// A name without the prefix is of no tensor here: the base says so.
  std::string inner(const std::string& name) const {
    return name.starts_with(prefix_) ? name.substr(prefix_.size()) : name;
  }

  std::string prefix_;
  std::shared_ptr<const TensorSource> base_;
  TensorTable table_;
};

}  // namespace

std::shared_ptr<TensorSource> prefixed_source(std::string prefix, std::shared_ptr<const TensorSource> base) {
  return std::make_shared<PrefixedSource>(std::move(prefix), std::move(base));
}

}  // namespace tessera::io
