#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/open_file.h"
#include "families/config_reader.h"
#include "io/tensor_table.h"
#include "models/gguf_model.h"
#include "models/gguf_names.h"
#include "quant/packed_source.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
using Kind = GgufView::Kind;

class Weights final : public io::TensorSource {
 public:
  explicit Weights(std::shared_ptr<const io::GgufFile> file) : file_(std::move(file)) {
    for (auto& view : gguf_views(*file_)) {
      table_.add({view.name, file_->find(view.stored)->dtype, view.shape, file_->header().path});
      const auto name = view.name;
      if (!views_.emplace(name, std::move(view)).second)
        throw DataError(fmt::format("{}: two tensors become '{}'", file_->header().path, name), file_->header().path);
    }
    table_.sort();
  }

  const std::vector<io::TensorInfo>& tensors() const override { return table_.all(); }
  const io::TensorInfo* find(const std::string& name) const override { return table_.find(name); }

  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto& view = require(name);
    io::check_elements(*find(name), begin, out);
    if (out.numel() == 0) return;
    switch (view.kind) {
      case Kind::kPlain:
        return file_->read(view.stored, begin, std::move(out));
      case Kind::kRows:
        return read_rows(view, begin, out);
      case Kind::kTransposed:
        return read_transposed(view, begin, out);
      case Kind::kMinusOne: {
        auto values = at::empty({out.numel()}, at::kFloat);
        file_->read(view.stored, begin, values);
        out.copy_(values.sub_(1));
      }
    }
  }

  std::optional<io::MappedTensor> map(const std::string& name) const override {
    const auto& view = require(name);
    return view.kind == Kind::kPlain ? file_->map(view.stored) : std::nullopt;
  }

 private:
  const GgufView& require(const std::string& name) const {
    const auto found = views_.find(name);
    if (found != views_.end()) return found->second;
    throw DataError(
        fmt::format("tensor '{}' is not among the {} tensors of {}", name, views_.size(), file_->header().path),
        file_->header().path);
  }

  void read_rows(const GgufView& view, std::int64_t begin, const at::Tensor& out) const {
    const auto rows = view.shape[0], cols = find(view.name)->numel() / rows;
    for (std::int64_t done = 0; done < out.numel();) {
      const auto at = begin + done, row = at / cols, column = at % cols;
      const auto n = std::min(cols - column, out.numel() - done);
      file_->read(view.stored, view.stored_row(row) * cols + column, out.narrow(0, done, n));
      done += n;
    }
  }

  /// Rows [first, last) of the result are columns of the stored matrix: all its rows are read in this range.
  void read_transposed(const GgufView& view, std::int64_t begin, const at::Tensor& out) const {
    const auto rows = view.shape[0], cols = view.shape[1];  // stored: [cols, rows]
    const auto first = begin / cols, last = (begin + out.numel() - 1) / cols + 1;
    auto block = at::empty({cols, last - first}, at::kFloat);
    for (std::int64_t c = 0; c < cols; ++c) file_->read(view.stored, c * rows + first, block.select(0, c));
    out.copy_(block.t().reshape(-1).narrow(0, begin - first * cols, out.numel()));
  }

  std::shared_ptr<const io::GgufFile> file_;
  std::map<std::string, GgufView> views_;
  io::TensorTable table_;
};

}  // namespace

namespace {

bool has_other_weights(const std::string& folder) {
  if (!fs::is_directory(folder)) return false;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if ((name.starts_with("model") && name.find(".safetensors") != std::string::npos) ||
        name.starts_with("pytorch_model"))
      return true;
  }
  return false;
}

}  // namespace

std::shared_ptr<io::TensorSource> gguf_weights(std::shared_ptr<const io::GgufFile> file) {
  return std::make_shared<Weights>(std::move(file));
}

std::optional<std::string> gguf_file_of(const std::string& path) {
  return is_there(fs::path(path) / "config.json") ? std::nullopt : find_gguf(path);
}

nlohmann::json read_model_config(const std::string& path) {
  if (const auto gguf = gguf_file_of(path)) return gguf_config(*io::open_gguf(*gguf));
  return families::read_json(path + "/config.json");
}

std::shared_ptr<io::TensorSource> open_model_weights(const std::string& path) {
  auto gguf = gguf_file_of(path);
  if (!gguf && !has_other_weights(path)) gguf = find_gguf(path);  // beside a config.json
  if (gguf) return gguf_weights(io::open_gguf(*gguf));
  auto stored = io::open_weights(path);
  const auto packed = quant::stored_four_bit(stored);
  return packed ? packed : stored;
}

}  // namespace tessera::models
