#include "formats/safetensors.h"

#include <fmt/format.h>
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/open_file.h"
#include "base/plain_reason.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

using simdjson::dom::element;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

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

// {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}.
SafetensorsEntry parse_entry(std::string_view name, const element& value, const std::string& where) {
  simdjson::dom::object object;
  if (value.get(object)) fail(where, "its header entry must be an object with dtype, shape and data_offsets");
  element dtype, shape, offsets;
  if (object["dtype"].get(dtype) || object["shape"].get(shape) || object["data_offsets"].get(offsets))
    fail(where, "its header entry lacks dtype, shape or data_offsets");
  std::string_view type;
  if (dtype.get(type)) fail(where, "\"dtype\" must be a string");
  SafetensorsEntry entry{std::string(name), std::string(type), integers(shape, where, "shape")};
  const auto span = integers(offsets, where, "data_offsets");
  if (span.size() != 2 || span[0] > span[1]) fail(where, "\"data_offsets\" must be [begin, end] with begin <= end");
  entry.begin = static_cast<std::uint64_t>(span[0]);
  entry.end = static_cast<std::uint64_t>(span[1]);
  return entry;
}

std::string header_text(const std::string& path, std::uint64_t file_bytes, const ReadRange& read) {
  if (file_bytes < 8)
    fail(path, fmt::format("not a safetensors file: expected at least 8 bytes, found {}", file_bytes));
  std::uint64_t length = 0;
  read(0, &length, sizeof length);
  if (length > kMaxHeaderBytes)
    fail(path,
         fmt::format("not a safetensors file, or corrupt: its header would have {} bytes (at most {} are allowed)",
                     length, kMaxHeaderBytes));
  if (length > file_bytes - 8)
    fail(path, fmt::format("truncated: the header has {} bytes, the file only {}", length, file_bytes));
  std::string text(length, '\0');
  read(8, text.data(), length);
  if (text.empty() || text.front() != '{') fail(path, "not a safetensors file: the header does not start with '{'");
  return text;
}

}  // namespace

SafetensorsHeader read_safetensors_header(const std::string& path, std::uint64_t file_bytes, const ReadRange& read) {
  const auto text = header_text(path, file_bytes, read);
  SafetensorsHeader header{path, 8 + text.size(), file_bytes - 8 - text.size(), {}};
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  if (auto error = parser.parse(text).get(object))
    fail(path, fmt::format("its header is not a JSON object: {}", plain_reason(simdjson::error_message(error))));
  for (auto [key, value] : object) {
    if (key == "__metadata__") continue;
    header.entries.push_back(parse_entry(key, value, fmt::format("{}: tensor '{}'", path, key)));
  }
  std::vector<std::string_view> names;
  for (const auto& entry : header.entries) names.emplace_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twin = std::adjacent_find(names.begin(), names.end());
  if (twin != names.end()) fail(path, fmt::format("the header names tensor '{}' twice", *twin));
  return header;
}

SafetensorsHeader read_safetensors_header(const std::string& path) {
  const OpenFile file(path);
  return read_safetensors_header(path, file.size_bytes(), [&](std::uint64_t offset, void* out, std::size_t count) {
    for (std::size_t done = 0; done < count;) {
      const auto got =
          ::pread(file.descriptor(), static_cast<char*>(out) + done, count - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail(path, got < 0 ? std::strerror(errno) : "ends early");
      done += static_cast<std::size_t>(got);
    }
  });
}

void check_safetensors_layout(const SafetensorsHeader& header) {
  std::vector<const SafetensorsEntry*> sorted;
  for (const auto& entry : header.entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(),
            [](auto* a, auto* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  std::uint64_t at = 0;
  for (const auto* entry : sorted) {
    const auto where = fmt::format("{}: tensor '{}'", header.path, entry->name);
    if (entry->end > header.data_bytes)
      fail(where, fmt::format("its data ends at byte {} of {}: the file is truncated or its header is wrong",
                              entry->end, header.data_bytes));
    if (entry->begin != at)
      fail(where, fmt::format("its data starts at byte {}, but the tensor before it ends at {} ({})", entry->begin, at,
                              entry->begin < at ? "overlap" : "gap"));
    at = entry->end;
  }
  if (at != header.data_bytes)
    fail(header.path,
         fmt::format("{} bytes of data, but its header describes only {}: the file or its header is damaged",
                     header.data_bytes, at));
}

}  // namespace tessera
