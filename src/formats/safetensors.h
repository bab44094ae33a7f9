#pragma once
// The header of a safetensors file (https://github.com/huggingface/safetensors, "Format"), with the upstream checks.
// Without torch, for who wants names and shapes only; io/safetensors_reader.h reads the tensors.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

struct SafetensorsEntry {
  std::string name, dtype;  // dtype as the file spells it: "F32"
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes from the start of the data
};

struct SafetensorsHeader {
  std::string path;
  std::uint64_t data_start = 0, data_bytes = 0;
  std::vector<SafetensorsEntry> entries;  // in the file's order; no two names are equal
};

/// Reads `bytes` bytes of the file from `offset`.
using ReadRange = std::function<void(std::uint64_t offset, void* out, std::size_t bytes)>;

/// DataError names the file, and the tensor, when something is not as the format says. Dtypes are not looked at.
SafetensorsHeader read_safetensors_header(const std::string& path, std::uint64_t file_bytes, const ReadRange& read);
SafetensorsHeader read_safetensors_header(const std::string& path);

/// DataError unless the tensors cover the data exactly: no gaps (room for hidden bytes), no overlaps, nothing behind.
void check_safetensors_layout(const SafetensorsHeader& header);

}  // namespace tessera
