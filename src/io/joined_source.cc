#include "io/tensor_table.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

class JoinedSource final : public TensorSource {
 public:
  explicit JoinedSource(std::vector<std::shared_ptr<const TensorSource>> sources) : sources_(std::move(sources)) {
    for (const auto& source : sources_) {
      for (const auto& info : source->tensors())
        if (!find_in(source.get(), info.name)) table_.add(info);
    }
    table_.sort();
  }

  const std::vector<TensorInfo>& tensors() const override { return table_.all(); }
  const TensorInfo* find(const std::string& name) const override {
    const auto* source = holder(name);
    return source ? source->find(name) : nullptr;
  }
  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto* source = holder(name);
    (source ? source : sources_.back().get())->read(name, begin, std::move(out));  // the last one's error names it
  }
  void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto* source = holder(name);
    (source ? source : sources_.back().get())->read_bytes(name, begin, std::move(out));
  }
  std::optional<MappedTensor> map(const std::string& name) const override {
    const auto* source = holder(name);
    return source ? source->map(name) : std::nullopt;
  }
  std::optional<MappedTensor> map_bytes(const std::string& name) const override {
    const auto* source = holder(name);
    return source ? source->map_bytes(name) : std::nullopt;
  }

 private:
  const TensorSource* holder(const std::string& name) const {
    for (const auto& source : sources_)
      if (source->find(name)) return source.get();
    return nullptr;
  }
  /// True when a source before `last` has the name.
  bool find_in(const TensorSource* last, const std::string& name) const {
    for (const auto& source : sources_) {
      if (source.get() == last) return false;
      if (source->find(name)) return true;
    }
    return false;
  }

  std::vector<std::shared_ptr<const TensorSource>> sources_;
  TensorTable table_;
};

}  // namespace

std::shared_ptr<TensorSource> joined_source(std::vector<std::shared_ptr<const TensorSource>> sources) {
  TESSERA_CHECK(!sources.empty(), "at least one source is joined");
  return std::make_shared<JoinedSource>(std::move(sources));
}

}  // namespace tessera::io
