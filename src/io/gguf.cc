#include "io/gguf.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "io/gguf_blocks.h"
#include "io/input_file.h"
#include "io/stored_tensor.h"
#include "tensor/file_pages.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

/// The dtype of types that are stored as they are.
std::optional<at::ScalarType> plain_type(std::uint32_t type) {
  switch (type) {
    case 0:
      return at::kFloat;
    case 1:
      return at::kHalf;
    case 24:
      return at::kChar;
    case 25:
      return at::kShort;
    case 26:
      return at::kInt;
    case 27:
      return at::kLong;
    case 28:
      return at::kDouble;
    case 30:
      return at::kBFloat16;
    default:
      return std::nullopt;
  }
}

struct Quantised {
  TensorInfo info;
  const GgufBlock* block = nullptr;
  std::uint64_t offset = 0;  // bytes from the start of the file
};

class File final : public GgufFile {
 public:
  explicit File(const std::string& path)
      : file_(std::make_shared<InputFile>(path)),
        mapping_(file_->map()),
        pages_({path, file_->descriptor(), mapping_, static_cast<std::size_t>(file_->size_bytes())}) {
    header_ = parse_gguf_header({reinterpret_cast<const char*>(mapping_.get()), file_->size_bytes()}, path);
    pages_.check();
    std::vector<StoredTensor> plain;
    for (const auto& t : header_.tensors) {
      if (!types_.emplace(t.name, t.type).second) fail(t.name, "the file names it twice");
      TensorInfo info{t.name, at::kFloat, t.shape, path};
      if (const auto dtype = plain_type(t.type)) {
        info.dtype = *dtype;
        check_end(info, t.offset, checked_nbytes(info));
        plain.push_back({info, file_, t.offset, {}});
      } else if (const auto* block = gguf_block(t.type)) {
        const auto numel = static_cast<std::int64_t>(checked_nbytes(info)) / 4;
        if (t.shape.empty() || t.shape.back() % block->elements != 0)
          fail(t.name, fmt::format("{} needs rows of a multiple of {} elements, found {}", block->name, block->elements,
                                   t.shape.empty() ? 1 : t.shape.back()));
        info.packed_bytes = numel / block->elements * block->bytes;
        check_end(info, t.offset, static_cast<std::uint64_t>(info.packed_bytes));
        quantised_.emplace(t.name, Quantised{info, block, t.offset});
      } else {
        fail(t.name, fmt::format("stored as {} (type {}), which is not read; F32, F16, BF16, Q4_0 to Q8_0, Q2_K to "
                                 "Q6_K, IQ1_S to IQ4_XS, TQ1_0, TQ2_0 and MXFP4 are",
                                 gguf_type_name(t.type), t.type));
      }
      infos_.push_back(std::move(info));
    }
    std::sort(infos_.begin(), infos_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    plain_ = make_stored_source(std::move(plain));
  }

  const GgufHeader& header() const override { return header_; }
  const std::vector<TensorInfo>& tensors() const override { return infos_; }
  std::string type_of(const std::string& tensor) const override { return gguf_type_name(types_.at(tensor)); }

  const GgufBlock* block_of(const std::string& tensor) const override {
    const auto found = quantised_.find(tensor);
    return found == quantised_.end() ? nullptr : found->second.block;
  }

  const TensorInfo* find(const std::string& name) const override {
    const auto found = quantised_.find(name);
    return found == quantised_.end() ? plain_->find(name) : &found->second.info;
  }

  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto found = quantised_.find(name);
    if (found == quantised_.end()) return plain_->read(name, begin, std::move(out));
    const auto& t = found->second;
    check_elements(t.info, begin, out);
    constexpr std::int64_t kChunk = 1 << 16;  // floats in between stay in the cache
    const bool direct = out.scalar_type() == at::kFloat;
    auto buffer = direct ? at::Tensor() : at::empty({std::min(kChunk, out.numel())}, at::kFloat);
    for (std::int64_t done = 0; done < out.numel(); done += kChunk) {
      const auto n = std::min(kChunk, out.numel() - done);
      auto target = out.narrow(0, done, n);
      auto floats = direct ? target : buffer.narrow(0, 0, n);
      dequantize(t, begin + done, n, floats.mutable_data_ptr<float>());
      if (!direct) target.copy_(floats);
    }
    pages_.check();
    // What has been unpacked is not needed again.
    const auto* blocks = mapping_.get() + t.offset;
    pages_.drop(blocks + begin / t.block->elements * t.block->bytes,
                blocks + (begin + out.numel()) / t.block->elements * t.block->bytes);
  }

  std::optional<MappedTensor> map(const std::string& name) const override {
    return quantised_.contains(name) ? std::nullopt : plain_->map(name);
  }

  void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto found = quantised_.find(name);
    if (found == quantised_.end()) return plain_->read_bytes(name, begin, std::move(out));
    const auto& t = found->second;
    check_bytes(t.info, begin, out);
    file_->read(t.offset + static_cast<std::uint64_t>(begin), out.mutable_data_ptr(), out.nbytes());
  }

  std::optional<MappedTensor> map_bytes(const std::string& name) const override {
    const auto found = quantised_.find(name);
    if (found == quantised_.end()) return plain_->map(name);
    auto whole = file_->map();
    auto* data = whole.get() + found->second.offset;
    return MappedTensor{data, std::move(whole)};
  }

 private:
  [[noreturn]] void fail(const std::string& tensor, const std::string& message) const {
    throw DataError(fmt::format("{}: tensor '{}': {}", file_->path(), tensor, message), file_->path());
  }

  void check_end(const TensorInfo& info, std::uint64_t offset, std::uint64_t bytes) const {
    if (bytes > file_->size_bytes() - offset)
      fail(info.name, fmt::format("its {} bytes from byte {} on go beyond the file's {}: is the download complete?",
                                  bytes, offset, file_->size_bytes()));
  }

  void dequantize(const Quantised& t, std::int64_t begin, std::int64_t count, float* out) const {
    t.block->dequantize_elements(mapping_.get() + t.offset, begin, count, out);
  }

  std::shared_ptr<const InputFile> file_;
  std::shared_ptr<std::byte> mapping_;
  tensor::FilePages pages_;  // of it
  GgufHeader header_;
  std::map<std::string, std::uint32_t> types_;
  std::map<std::string, Quantised> quantised_;
  std::shared_ptr<TensorSource> plain_;
  std::vector<TensorInfo> infos_;
};

}  // namespace

std::shared_ptr<GgufFile> open_gguf(const std::string& file) {
  return std::make_shared<File>(file);
}

}  // namespace tessera::io
