#pragma once
// Changes of a safetensors file: of its header as JSON, after which its entries mostly lie one behind another again and
// have as many bytes as they say; or of its data.
#include "fuzz/json_tree.h"
#include "io/safetensors_dtype.h"

namespace tessera::fuzz {

/// The bytes that dtype and shape need; nothing where they are wrong, or too many for a small file.
inline std::optional<std::uint64_t> bytes_of(const Json& entry) {
  constexpr std::uint64_t kMost = 1 << 14;
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape")) return std::nullopt;
  const Json &dtype = entry["dtype"], &shape = entry["shape"];
  const auto type = dtype.is_string() ? io::safetensors_dtype(dtype.get<std::string>()) : std::nullopt;
  if (!type || !shape.is_array()) return std::nullopt;
  std::uint64_t bytes = c10::elementSize(*type);
  for (const Json& n : shape) {
    if (!n.is_number_unsigned() && !(n.is_number_integer() && n.get<std::int64_t>() >= 0)) return std::nullopt;
    if (n.get<std::uint64_t>() > kMost) return std::nullopt;
    bytes *= n.get<std::uint64_t>();
    if (bytes > kMost) return std::nullopt;
  }
  return bytes;
}

inline void lay_out(Json& header, std::string& data) {
  std::uint64_t at = 0;
  for (auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto bytes = bytes_of(entry);
    if (!bytes) return;
    entry["data_offsets"] = Json::array({at, at + *bytes});
    at += *bytes;
  }
  data.resize(at, 1);
}

inline std::optional<std::string> changed_safetensors(std::string_view file, Random& random) {
  if (file.size() < 8) return std::nullopt;
  const auto length = number_at<std::uint64_t>(file, 0);
  if (length > file.size() - 8) return std::nullopt;
  auto header = as_json(file.substr(8, length));
  std::string data(file.substr(8 + length));
  if (!header || !header->is_object()) return std::nullopt;
  if (random.one_in(4)) {
    data = changed_bytes(std::move(data), 0);
  } else {
    Json copy = *header;
    for (bool more = true; more; more = random.one_in(2)) change_json(*header, copy, random);
    if (header->is_object() && !random.one_in(8)) lay_out(*header, data);
  }
  const std::string text = as_text(*header);
  std::string out;
  put(out, std::uint64_t{text.size()});
  return out + text + data;
}

}  // namespace tessera::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return tessera::fuzz::mutate(data, size, max_size, seed, tessera::fuzz::changed_safetensors);
}
