#include "data/split_slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

/// False where the text is no end of a slice.
bool read_end(std::string_view text, std::optional<SliceEnd>& out) {
  if (text.empty()) return true;
  SliceEnd end;
  end.is_percentage = text.ends_with('%');
  if (end.is_percentage) text.remove_suffix(1);
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), end.number);
  if (error != std::errc() || stop != text.data() + text.size()) return false;
  if (end.is_percentage && std::abs(end.number) > 100) return false;
  out = end;
  return true;
}

std::int64_t row_at(const SliceEnd& end, std::int64_t rows) {
  const auto row = end.is_percentage ? std::llrint(static_cast<double>(end.number * rows) / 100)  // half to even
                                     : end.number;
  return std::clamp<std::int64_t>(row < 0 ? rows + row : row, 0, rows);
}

}  // namespace

SplitSlice parse_split_slice(const std::string& name, const std::string& flag) {
  const auto fail = [&](const std::string& what) {
    throw ConfigError(fmt::format("{}: {}, found '{}'", flag, what, name), flag.substr(2));
  };
  if (name.find('+') != std::string::npos)
    fail(
        "expected one split, as splits are not joined by +; --datasets trains on several: a list with an entry for "
        "each");
  const auto bracket = name.find('[');
  SplitSlice out{.text = name, .split = name.substr(0, bracket), .from = {}, .to = {}};
  if (bracket == std::string::npos) return out;
  std::string_view ends = std::string_view(name).substr(bracket + 1);
  const auto colon = ends.find(':');
  const bool is_slice = !out.split.empty() && ends.ends_with(']') && colon != std::string_view::npos &&
                        read_end(ends.substr(0, colon), out.from) &&
                        read_end(ends.substr(colon + 1, ends.size() - colon - 2), out.to) &&
                        !(out.from && out.to && out.from->is_percentage != out.to->is_percentage);
  if (!is_slice) fail("expected a slice of rows such as train[:1000], train[-5:] or train[10%:90%]");
  return out;
}

RowRange rows_of(const SplitSlice& slice, std::int64_t rows) {
  RowRange range{slice.from ? row_at(*slice.from, rows) : 0, slice.to ? row_at(*slice.to, rows) : rows};
  range.end = std::max(range.begin, range.end);
  return range;
}

}  // namespace tessera::data
