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

}  // namespace

std::vector<StoredTensor> list_torch_file(const std::string& path) {
  auto file = std::make_shared<InputFile>(path);
  if (file->size_bytes() < 2 || file->read_string(0, 2) != "PK")
    throw DataError(
        fmt::format(
            "{}: not a file of torch.save since version 1.6 (a zip file). Older files: load and save them again with "
            "torch, or use safetensors",
            path),
        path);
  const auto entries = list_zip(*file);
  const auto folder = find_folder(entries, path);
  const auto& pickle = *find_entry(entries, folder + "data.pkl");
  if (pickle.bytes > kMaxPickleBytes)
    throw DataError(
        fmt::format("{}: its data.pkl has {} bytes (at most {} are allowed)", path, pickle.bytes, kMaxPickleBytes),
        path);
  if (const auto* order = find_entry(entries, folder + "byteorder"); order && order->bytes < 64)
    if (const auto text = read_zip_entry(*file, *order); text != "little")
      throw DataError(fmt::format("{}: its byte order is \"{}\"; only \"little\" is supported", path, text), path);
  std::vector<StoredTensor> out;
  for (auto& [name, tensor] : read_state_dict_pickle(read_zip_entry(*file, pickle), path)) {
    StoredTensor t;
    t.info = {name, tensor.dtype, tensor.shape, path};
    t.file = file;
    const auto* entry = find_entry(entries, folder + "data/" + tensor.key);
    if (!entry)
      throw DataError(fmt::format("{}: tensor '{}': its storage '{}' is missing in the file", path, name, tensor.key),
                      path);
    check_view(tensor, t.info, *entry);
    t.offset = entry->offset + static_cast<std::uint64_t>(tensor.offset) * c10::elementSize(tensor.dtype);
    if (!is_contiguous(tensor)) t.strides = tensor.strides;
    out.push_back(std::move(t));
  }
  return out;
}

}  // namespace tessera::io
