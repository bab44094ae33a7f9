#include "io/renamed_source.h"

#include <map>

#include "io/tensor_table.h"

namespace tessera::io {
namespace {

class RenamedSource final : public TensorSource {
 public:
  RenamedSource(std::shared_ptr<const TensorSource> base,
                const std::function<std::string(const std::string& name)>& new_name)
      : base_(std::move(base)) {
    for (auto info : base_->tensors()) {
      const std::string name = new_name(info.name);
      if (name.empty()) continue;
      base_names_[name] = info.name;
      info.name = name;
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
  /// A name that is of no tensor here: the base says so.
  const std::string& inner(const std::string& name) const {
    const auto found = base_names_.find(name);
    return found == base_names_.end() ? name : found->second;
  }

  std::shared_ptr<const TensorSource> base_;
  std::map<std::string, std::string> base_names_;
  TensorTable table_;
};

}  // namespace

std::shared_ptr<TensorSource> renamed_source(std::shared_ptr<const TensorSource> base,
                                             const std::function<std::string(const std::string& name)>& new_name) {
  return std::make_shared<RenamedSource>(std::move(base), new_name);
}

}  // namespace tessera::io
