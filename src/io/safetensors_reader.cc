#include "io/safetensors_reader.h"

#include <fmt/format.h>

#include "formats/safetensors.h"
#include "io/safetensors_dtype.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

// The entry with its dtype; DataError unless that is known and its bytes are as many as dtype and shape need.
TensorInfo tensor_info(const SafetensorsEntry& entry, const std::string& path) {
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{}: tensor '{}': {}", path, entry.name, what), path);
  };
  const auto type = safetensors_dtype(entry.dtype);
  if (!type) fail(fmt::format("unknown dtype \"{}\"; known are {}", entry.dtype, safetensors_dtype_names()));
  TensorInfo info{entry.name, *type, entry.shape, path};
  const auto bytes = checked_nbytes(info);
  if (entry.end - entry.begin != bytes)
    fail(fmt::format("data_offsets [{}, {}) hold {} bytes, but its dtype and shape need {}", entry.begin, entry.end,
                     entry.end - entry.begin, bytes));
  return info;
}

}  // namespace

std::vector<StoredTensor> list_safetensors(const std::string& path) {
  const auto file = std::make_shared<InputFile>(path);
  const auto header = read_safetensors_header(
      path, file->size_bytes(),
      [&](std::uint64_t offset, void* out, std::size_t bytes) { file->read(offset, out, bytes); });
  std::vector<StoredTensor> tensors;
  for (const auto& entry : header.entries)
    tensors.push_back({tensor_info(entry, path), file, header.data_start + entry.begin, {}});
  check_safetensors_layout(header);
  return tensors;
}

std::shared_ptr<TensorSource> open_safetensors(const std::string& file) {
  return make_stored_source(list_safetensors(file));
}

}  // namespace tessera::io
