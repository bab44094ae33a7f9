#include "io/stored_tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "io/tensor_table.h"
#include "tensor/file_pages.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

static_assert(std::endian::native == std::endian::little, "weight files are little-endian and read without swapping");

constexpr std::int64_t kChunkBytes = 1 << 20;  // conversion buffer: stays in the cache

const StoredTensor* find_in(const std::vector<StoredTensor>& sorted, const std::string& name) {
  auto it = std::lower_bound(sorted.begin(), sorted.end(), name,
                             [](const StoredTensor& t, const std::string& n) { return t.info.name < n; });
  return it != sorted.end() && it->info.name == name ? &*it : nullptr;
}

// Copies row-major elements [begin, begin + count) of a strided view. Only the bytes of those elements are touched.
void gather_strided(const StoredTensor& t, const std::byte* first, std::size_t element_bytes, std::int64_t begin,
                    std::int64_t count, std::byte* out) {
  const auto dims = t.info.shape.size();
  std::vector<std::int64_t> index(dims);
  auto rest = begin;
  for (auto d = dims; d-- > 0;) {
    index[d] = rest % t.info.shape[d];
    rest /= t.info.shape[d];
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < dims; ++d) at += index[d] * t.strides[d];
    std::memcpy(out, first + at * static_cast<std::int64_t>(element_bytes), element_bytes);
    out += element_bytes;
    for (auto d = dims; d-- > 0;) {
      if (++index[d] < t.info.shape[d]) break;
      index[d] = 0;
    }
  }
}

void read_raw(const StoredTensor& t, std::int64_t begin, std::int64_t count, void* out) {
  const auto element_bytes = c10::elementSize(t.info.dtype);
  if (t.strides.empty()) {
    t.file->read(t.offset + static_cast<std::uint64_t>(begin) * element_bytes, out,
                 static_cast<std::size_t>(count) * element_bytes);
    return;
  }
  const auto mapping = t.file->map();
  const tensor::FilePages pages(
      {at::from_blob(mapping.get(), {static_cast<std::int64_t>(t.file->size_bytes())}, at::kByte)});
  gather_strided(t, mapping.get() + t.offset, element_bytes, begin, count, static_cast<std::byte*>(out));
  pages.check();
}

class StoredSource final : public TensorSource {
 public:
  explicit StoredSource(std::vector<StoredTensor> tensors) : stored_(std::move(tensors)) {
    std::sort(stored_.begin(), stored_.end(),
              [](const StoredTensor& a, const StoredTensor& b) { return a.info.name < b.info.name; });
    for (const auto& t : stored_) infos_.push_back(t.info);
  }

  const std::vector<TensorInfo>& tensors() const override { return infos_; }

  const TensorInfo* find(const std::string& name) const override {
    const auto* t = find_in(stored_, name);
    return t ? &t->info : nullptr;
  }

  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto& t = require_range(name, begin, out);
    const auto count = out.numel();
    if (count == 0) return;
    if (out.scalar_type() == t.info.dtype) return read_raw(t, begin, count, out.mutable_data_ptr());
    const auto chunk = std::min(count, kChunkBytes / static_cast<std::int64_t>(c10::elementSize(t.info.dtype)));
    auto buffer = at::empty({chunk}, at::TensorOptions().dtype(t.info.dtype));
    for (std::int64_t done = 0; done < count; done += chunk) {
      const auto n = std::min(chunk, count - done);
      read_raw(t, begin + done, n, buffer.mutable_data_ptr());
      out.narrow(0, done, n).copy_(buffer.narrow(0, 0, n));
    }
  }

  void read_all(const std::vector<SliceRead>& slices, Readers readers) const override {
    std::vector<FileRead> reads;
    for (const auto& slice : slices) {
      const auto& t = require_range(slice.name, slice.begin, slice.out);
      if (t.strides.empty())
        reads.push_back(read_of(t, slice.begin, slice.out, readers));
      else
        read(slice.name, slice.begin, slice.out);
    }
    std::sort(reads.begin(), reads.end(), [](const FileRead& a, const FileRead& b) {
      return std::tie(a.from.file->path(), a.from.offset) < std::tie(b.from.file->path(), b.from.offset);
    });
    read_files(reads);
  }

  std::optional<MappedTensor> map(const std::string& name) const override {
    const auto& t = require(name);
    if (!t.strides.empty() || t.info.numel() == 0) return std::nullopt;
    auto whole = t.file->map();
    auto* data = whole.get() + t.offset;
    if (reinterpret_cast<std::uintptr_t>(data) % c10::elementSize(t.info.dtype) != 0) return std::nullopt;
    return MappedTensor{data, std::move(whole)};
  }

 private:
  const StoredTensor& require_range(const std::string& name, std::int64_t begin, const at::Tensor& out) const {
    const auto& t = require(name);
    check_elements(t.info, begin, out);
    return t;
  }
  const StoredTensor& require(const std::string& name) const {
    if (const auto* t = find_in(stored_, name)) return *t;
    const auto file = stored_.empty() ? std::string() : stored_.front().info.file;
    throw DataError(fmt::format("tensor '{}' is not among the {} tensors of {}", name, stored_.size(),
                                file.empty() ? "an empty file" : file),
                    file);
  }

  std::vector<StoredTensor> stored_;
  std::vector<TensorInfo> infos_;
};

}  // namespace

FileRead read_of(const StoredTensor& t, std::int64_t begin, const at::Tensor& out, Readers readers) {
  const auto element_bytes = c10::elementSize(t.info.dtype);
  return {.from = {t.file, t.offset + static_cast<std::uint64_t>(begin) * element_bytes,
                   static_cast<std::uint64_t>(out.numel()) * element_bytes, readers},
          .stored = t.info.dtype,
          .out = out};
}

std::uint64_t checked_nbytes(const TensorInfo& info) {
  constexpr std::size_t kMaxDims = 64;
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{}: tensor '{}': {}", info.file, info.name, what), info.file);
  };
  if (info.shape.size() > kMaxDims)
    fail(fmt::format("{} dimensions; at most {} are supported", info.shape.size(), kMaxDims));
  // Signed: at::Tensor counts elements and bytes in int64, and products that a 0 later makes harmless must fit too.
  auto bytes = static_cast<std::int64_t>(c10::elementSize(info.dtype));
  bool empty = false;
  for (auto size : info.shape) {
    if (size < 0) fail(fmt::format("negative size {} in the shape", size));
    if (size == 0) empty = true;
    if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) fail("the shape's number of bytes exceeds 2^63");
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

std::shared_ptr<TensorSource> make_stored_source(std::vector<StoredTensor> tensors) {
  return std::make_shared<StoredSource>(std::move(tensors));
}

}  // namespace tessera::io
