#include "io/torch_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/pickle.h"
#include "io/zip_archive.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

constexpr std::uint64_t kMaxPickleBytes = 100'000'000;

const ZipEntry* find_entry(const std::vector<ZipEntry>& sorted, const std::string& name) {
  auto it = std::lower_bound(sorted.begin(), sorted.end(), name,
                             [](const ZipEntry& e, const std::string& n) { return e.name < n; });
  return it != sorted.end() && it->name == name ? &*it : nullptr;
}

// Everything lies in one folder of the archive, whose name is free.
std::string find_folder(const std::vector<ZipEntry>& entries, const std::string& file) {
  constexpr std::string_view kPickle = "/data.pkl";
  for (const auto& entry : entries)
    if (entry.name.ends_with(kPickle)) return entry.name.substr(0, entry.name.size() - kPickle.size() + 1);
  throw DataError(fmt::format("{}: a zip file, but not one of torch.save: it has no data.pkl", file), file);
}

// The strides of a contiguous tensor of this shape; sizes of 1 may have any.
bool is_contiguous(const PickledTensor& t) {
  std::int64_t expected = 1;
  for (auto d = t.shape.size(); d-- > 0;) {
    if (t.shape[d] != 1 && t.strides[d] != expected) return false;
    expected *= t.shape[d];
  }
  return true;
}

// Every element must lie in the storage, and the storage in its entry.
void check_view(const PickledTensor& t, const TensorInfo& info, const ZipEntry& entry) {
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{}: tensor '{}': {}", info.file, info.name, what), info.file);
  };
  if (t.storage_bytes != entry.bytes)
    fail(fmt::format("its storage should have {} bytes, entry '{}' has {}", t.storage_bytes, entry.name, entry.bytes));
  if (t.strides.size() != t.shape.size())
    fail(fmt::format("{} sizes, but {} strides", t.shape.size(), t.strides.size()));
  const auto bytes = checked_nbytes(info);
  std::int64_t last = t.offset;
  bool overflow = t.offset < 0;
  for (std::size_t d = 0; d < t.shape.size() && bytes > 0; ++d) {
    std::int64_t reach = 0;
    overflow |= t.strides[d] < 0 || __builtin_mul_overflow(t.shape[d] - 1, t.strides[d], &reach) ||
                __builtin_add_overflow(last, reach, &last);
  }
  const auto room = static_cast<std::int64_t>(entry.bytes / c10::elementSize(t.dtype));
  if (overflow || (bytes > 0 && last >= room) || t.offset > room)
    fail(fmt::format("its offset, sizes and strides reach outside its storage of {} elements", room));
}

/// An opened archive: its pickle, and where the storages lie.
class TorchArchiveReader {
 public:
  TorchArchiveReader(std::shared_ptr<const InputFile> file, const FileRange& range)
      : file_(std::move(file)), entries_(list_zip(*file_, range)), folder_(find_folder(entries_, file_->path())) {
    if (const auto* order = find_entry(entries_, folder_ + "byteorder"); order && order->bytes < 64)
      if (const auto text = read_zip_entry(*file_, *order); text != "little")
        throw DataError(fmt::format("{}: its byte order is \"{}\"; only \"little\" is supported", file_->path(), text),
                        file_->path());
  }

  std::string pickle() const {
    const auto& entry = *find_entry(entries_, folder_ + "data.pkl");
    if (entry.bytes > kMaxPickleBytes)
      throw DataError(fmt::format("{}: its data.pkl has {} bytes (at most {} are allowed)", file_->path(), entry.bytes,
                                  kMaxPickleBytes),
                      file_->path());
    return read_zip_entry(*file_, entry);
  }

  StoredTensor locate(const std::string& name, const PickledTensor& tensor) const {
    StoredTensor t;
    t.info = {name, tensor.dtype, tensor.shape, file_->path()};
    t.file = file_;
    const auto* entry = find_entry(entries_, folder_ + "data/" + tensor.key);
    if (!entry)
      throw DataError(
          fmt::format("{}: tensor '{}': its storage '{}' is missing in the file", file_->path(), name, tensor.key),
          file_->path());
    check_view(tensor, t.info, *entry);
    t.offset = entry->offset + static_cast<std::uint64_t>(tensor.offset) * c10::elementSize(tensor.dtype);
    if (!is_contiguous(tensor)) t.strides = tensor.strides;
    return t;
  }

  std::vector<StoredTensor> locate(const std::vector<PickledEntry>& entries) const {
    std::vector<StoredTensor> out;
    for (const auto& [name, tensor] : entries) out.push_back(locate(name, tensor));
    return out;
  }

 private:
  std::shared_ptr<const InputFile> file_;
  std::vector<ZipEntry> entries_;
  std::string folder_;
};

TorchArchiveReader open_archive(const std::string& path) {
  auto file = std::make_shared<InputFile>(path);
  if (file->size_bytes() < 2 || file->read_string(0, 2) != "PK")
    throw DataError(
        fmt::format(
            "{}: not a file of torch.save since version 1.6 (a zip file). Older files: load and save them again with "
            "torch, or use safetensors",
            path),
        path);
  const FileRange whole{0, file->size_bytes()};
  return {std::move(file), whole};
}

}  // namespace

std::vector<StoredTensor> list_torch_file(const std::string& path) {
  const auto archive = open_archive(path);
  return archive.locate(read_state_dict_pickle(archive.pickle(), path));
}

std::vector<StoredTensor> list_nested_torch_file(const std::string& path) {
  const auto archive = open_archive(path);
  return archive.locate(read_nested_pickle(archive.pickle(), path));
}

StoredTensor list_torch_tensor(const std::shared_ptr<const InputFile>& file, const FileRange& range) {
  const TorchArchiveReader archive(file, range);
  return archive.locate("", read_tensor_pickle(archive.pickle(), file->path()));
}

}  // namespace tessera::io
