#pragma once
// The bytes before the tensors of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2
// and 3, little-endian: metadata and the list of tensors. Without torch, for who wants a tokenizer or a template only.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera {

/// Every integer type of the format is an int64 here (larger uint64: DataError), every float type a double.
using GgufValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>, std::vector<double>,
                               std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // row-major: the file's dimensions reversed
  std::uint32_t type = 0;
  std::uint64_t offset = 0;  // bytes from the start of the file
};

struct GgufHeader {
  std::string path;
  std::map<std::string, GgufValue> metadata;
  std::vector<GgufTensor> tensors;  // in the file's order; types, sizes and ends are not checked

  /// The value under the key; nothing when it is absent, DataError when it has another type (an integer is taken as a
  /// double too).
  std::optional<std::int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  const std::vector<std::string>* texts(const std::string& key) const;
  const std::vector<std::int64_t>* integers(const std::string& key) const;
  const std::vector<double>* numbers(const std::string& key) const;
};

/// `bytes`: the whole file. Every count, length, offset and type is checked against it: DataError names the file, the
/// key or tensor, and the byte.
GgufHeader parse_gguf_header(std::string_view bytes, const std::string& path);

/// Maps the file; only what the header touches is read.
GgufHeader read_gguf_header(const std::string& path);

/// The file itself if `path` ends in .gguf; the one .gguf file of a folder. Nothing for other paths. DataError when a
/// folder holds several.
std::optional<std::string> find_gguf(const std::string& path);

}  // namespace tessera
