#include "io/safetensors_reader.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>

#include "io/safetensors_dtype.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

using simdjson::dom::element;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct Span {
  std::uint64_t begin = 0, end = 0;  // bytes from the start of the data
};

[[noreturn]] void fail(const std::string& where, const std::string& message) {
  throw DataError(where + ": " + message, where.substr(0, where.find(": tensor '")));
}

std::vector<std::int64_t> integers(const element& value, const std::string& where, const char* key) {
  simdjson::dom::array items;
  if (value.get(items)) fail(where, fmt::format("\"{}\" must be an array of integers", key));
  std::vector<std::int64_t> out;
  for (auto item : items) {
    std::int64_t n = 0;
    if (item.get(n) || n < 0) fail(where, fmt::format("\"{}\" must hold integers from 0 to 2^63 - 1", key));
    out.push_back(n);
  }
  return out;
}

// One entry of the header: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}.
Span parse_entry(const element& value, const std::string& where, TensorInfo& info) {
  simdjson::dom::object object;
  if (value.get(object)) fail(where, "its header entry must be an object with dtype, shape and data_offsets");
  element dtype, shape, offsets;
  if (object["dtype"].get(dtype) || object["shape"].get(shape) || object["data_offsets"].get(offsets))
    fail(where, "its header entry lacks dtype, shape or data_offsets");
  std::string_view name;
  if (dtype.get(name)) fail(where, "\"dtype\" must be a string");
  const auto type = safetensors_dtype(name);
  if (!type) fail(where, fmt::format("unknown dtype \"{}\"; known are {}", name, safetensors_dtype_names()));
  info.dtype = *type;
  info.shape = integers(shape, where, "shape");
  const auto span = integers(offsets, where, "data_offsets");
  if (span.size() != 2 || span[0] > span[1]) fail(where, "\"data_offsets\" must be [begin, end] with begin <= end");
  const auto begin = static_cast<std::uint64_t>(span[0]), end = static_cast<std::uint64_t>(span[1]);
  const auto bytes = checked_nbytes(info);
  if (end - begin != bytes)
    fail(where, fmt::format("data_offsets [{}, {}) hold {} bytes, but its dtype and shape need {}", begin, end,
                            end - begin, bytes));
  return {begin, end};
}

std::string read_header(const InputFile& file) {
  const auto& path = file.path();
  if (file.size_bytes() < 8)
    fail(path, fmt::format("not a safetensors file: expected at least 8 bytes, found {}", file.size_bytes()));
  std::uint64_t length = 0;
  file.read(0, &length, sizeof length);
  if (length > kMaxHeaderBytes)
    fail(path,
         fmt::format("not a safetensors file, or corrupt: its header would have {} bytes (at most {} are allowed)",
                     length, kMaxHeaderBytes));
  if (length > file.size_bytes() - 8)
    fail(path, fmt::format("truncated: the header has {} bytes, the file only {}", length, file.size_bytes()));
  auto header = file.read_string(8, length);
  if (header.empty() || header.front() != '{') fail(path, "not a safetensors file: the header does not start with '{'");
  return header;
}

// The data must be covered exactly: no gaps (room for hidden bytes), no overlaps, nothing behind the end.
void check_layout(const std::string& path, std::vector<std::pair<Span, const std::string*>>& spans,
                  std::uint64_t data_bytes) {
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.begin, a.first.end) < std::pair(b.first.begin, b.first.end);
  });
  std::uint64_t at = 0;
  for (const auto& [span, name] : spans) {
    const auto where = fmt::format("{}: tensor '{}'", path, *name);
    if (span.end > data_bytes)
      fail(where, fmt::format("its data ends at byte {} of {}: the file is truncated or its header is wrong", span.end,
                              data_bytes));
    if (span.begin != at)
      fail(where, fmt::format("its data starts at byte {}, but the tensor before it ends at {} ({})", span.begin, at,
                              span.begin < at ? "overlap" : "gap"));
    at = span.end;
  }
  if (at != data_bytes)
    fail(path, fmt::format("{} bytes of data, but its header describes only {}: the file or its header is damaged",
                           data_bytes, at));
}

}  // namespace

std::vector<StoredTensor> list_safetensors(const std::string& path) {
  auto file = std::make_shared<InputFile>(path);
  const auto header = read_header(*file);
  const std::uint64_t data_start = 8 + header.size();

  simdjson::dom::parser parser;
  simdjson::dom::object object;
  if (auto error = parser.parse(header).get(object))
    fail(path, fmt::format("its header is not a JSON object: {}", simdjson::error_message(error)));
  std::vector<StoredTensor> tensors;
  std::vector<Span> found;
  for (auto [key, value] : object) {
    if (key == "__metadata__") continue;
    StoredTensor t;
    t.info.name = std::string(key);
    t.info.file = path;
    t.file = file;
    found.push_back(parse_entry(value, fmt::format("{}: tensor '{}'", path, key), t.info));
    t.offset = data_start + found.back().begin;
    tensors.push_back(std::move(t));
  }
  std::vector<std::pair<Span, const std::string*>> spans;
  std::vector<const std::string*> names;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    spans.emplace_back(found[i], &tensors[i].info.name);
    names.push_back(&tensors[i].info.name);
  }
  std::sort(names.begin(), names.end(), [](auto* a, auto* b) { return *a < *b; });
  auto twin = std::adjacent_find(names.begin(), names.end(), [](auto* a, auto* b) { return *a == *b; });
  if (twin != names.end()) fail(path, fmt::format("the header names tensor '{}' twice", **twin));
  check_layout(path, spans, file->size_bytes() - data_start);
  return tensors;
}

std::shared_ptr<TensorSource> open_safetensors(const std::string& file) {
  return make_stored_source(list_safetensors(file));
}

}  // namespace tessera::io
