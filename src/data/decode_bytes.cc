#include "data/decode_bytes.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

#include "base/utf8.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

// The line that holds the first malformed sequence: a line break is never part of a sequence, so lines can be judged
// alone.
std::int64_t first_bad_line(std::string_view bytes) {
  std::int64_t number = 1;
  for (std::size_t begin = 0; begin < bytes.size(); ++number) {
    const auto end = std::min(bytes.find('\n', begin), bytes.size());
    if (!simdjson::validate_utf8(bytes.data() + begin, end - begin)) break;
    begin = end + 1;
  }
  return number;
}

}  // namespace

std::string latin1_to_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 16);
  for (unsigned char c : bytes) append_utf8(c, out);
  return out;
}

std::optional<std::string> decode_bytes(const std::string& file, std::string_view bytes, FileEncoding encoding) {
  if (encoding == FileEncoding::kLatin1) return latin1_to_utf8(bytes);
  if (simdjson::validate_utf8(bytes.data(), bytes.size())) return std::nullopt;
  if (encoding == FileEncoding::kAuto) return latin1_to_utf8(bytes);
  const auto line = first_bad_line(bytes);
  throw DataError(
      fmt::format("{}:{}: bytes that are not UTF-8. Convert the file, or say that it is ISO-8859-1", file, line), file,
      line);
}

}  // namespace tessera::data
