#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/open_file.h"
#include "families/config_reader.h"
#include "families/quantization.h"
#include "io/tensor_table.h"
#include "models/gguf_model.h"
#include "models/gguf_names.h"
#include "quant/gguf_codec.h"
#include "quant/packed_source.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
using How = GgufArrangement;

class Weights final : public quant::PackedSource {
 public:
  explicit Weights(std::shared_ptr<const io::GgufFile> file) : file_(std::move(file)) {
    for (auto& view : gguf_views(*file_)) {
      const auto* block = packed_block(view);
      if (block) codecs_.emplace(view.name, quant::gguf_codec(*block));
      io::TensorInfo info{view.name, file_->find(view.stored)->dtype, view.shape, file_->header().path};
      if (block) info.packed_bytes = info.numel() / block->elements * block->bytes;
      table_.add(std::move(info));
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
    if (view.stored_row) return read_rows(view, begin, out);
    if (view.arrangement == How::kTransposed) return read_transposed(view, begin, out);
    if (view.arrangement != How::kPlusOne) return file_->read(view.stored, begin, std::move(out));
    auto values = at::empty({out.numel()}, at::kFloat);
    file_->read(view.stored, begin, values);
    out.copy_(values.sub_(1));
  }

  std::optional<io::MappedTensor> map(const std::string& name) const override {
    const auto& view = require(name);
    return view.arrangement == How::kPlain ? file_->map(view.stored) : std::nullopt;
  }

  bool is_also_dense() const override { return true; }
  /// Of matrices as [out, in], whatever is shown: those that are shown transposed lie so.
  std::shared_ptr<const tensor::Codec> codec(const std::string& name) const override {
    const auto found = codecs_.find(name);
    return found == codecs_.end() ? nullptr : found->second;
  }
  void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    if (!codec(name)) return TensorSource::read_bytes(name, begin, std::move(out));
    const auto& view = require(name);
    if (!view.stored_row) return file_->read_bytes(view.stored, begin, std::move(out));
    io::check_bytes(*find(name), begin, out);
    for (const auto row_bytes = bytes_of_row(view); out.numel() > 0;) {
      const auto row = begin / row_bytes, skip = begin % row_bytes;
      const auto n = std::min(row_bytes - skip, out.numel());
      file_->read_bytes(view.stored, view.stored_row(row) * row_bytes + skip, out.narrow(0, 0, n));
      out = out.narrow(0, n, out.numel() - n);
      begin += n;
    }
  }
  std::optional<io::MappedTensor> map_bytes(const std::string& name) const override {
    if (!codec(name)) return map(name);
    const auto& view = require(name);
    auto mapped = file_->map_bytes(view.stored);
    if (!view.stored_row || !mapped) return mapped;
    const auto first = view.stored_row(0);
    for (std::int64_t row = 1; row < view.shape[0]; ++row)
      if (view.stored_row(row) != first + row) return std::nullopt;
    mapped->data += first * bytes_of_row(view);
    return mapped;
  }

 private:
  /// Null: its values are read.
  const io::GgufBlock* packed_block(const GgufView& view) const {
    const bool keeps_bytes = view.shape.size() == 2 && view.arrangement != How::kPlusOne;
    return keeps_bytes ? file_->block_of(view.stored) : nullptr;
  }
  std::int64_t bytes_of_row(const GgufView& view) const { return find(view.name)->nbytes() / view.shape[0]; }

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
  std::map<std::string, std::shared_ptr<const tensor::Codec>> codecs_;
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
  const auto packed = packed_in_folder(stored, path);
  return packed ? packed : stored;
}

std::shared_ptr<quant::PackedSource> packed_in_folder(std::shared_ptr<const io::TensorSource> stored,
                                                      const std::string& folder) {
  const auto file = folder + "/config.json";
  quant::StoredSettings settings;
  const auto said = is_there(file) ? families::read_quantization(families::read_json(file), file) : std::nullopt;
  if (said) {
    settings.int8_threshold = said->int8_threshold;
    settings.gptq_v2 = said->gptq_v2;
    settings.bits = said->bits;
    settings.group_size = said->group_size;
  }
  return quant::stored_packed(std::move(stored), settings);
}

}  // namespace tessera::models
