#pragma once
// A split's name with the part of its rows that counts, as the library `datasets` writes it: train[:90%].
#include <cstdint>
#include <optional>
#include <string>

namespace tessera::data {

/// An end of a slice: a row or a percentage, counted from the end where it is negative.
struct SliceEnd {
  std::int64_t number = 0;
  bool is_percentage = false;
};

struct SplitSlice {
  std::string text;                  // "train[:90%]"
  std::string split;                 // "train"
  std::optional<SliceEnd> from, to;  // none: the begin, the end

  bool has_all_rows() const { return !from && !to; }
};

/// Half open.
struct RowRange {
  std::int64_t begin = 0, end = 0;
};

/// From a name such as "train", "train[10:20]", "train[-5%:]". ConfigError for `flag` (--splits) where it is none, and
/// for splits that are joined by +.
SplitSlice parse_split_slice(const std::string& name, const std::string& flag);

/// Which of so many rows count; percentages are rounded to the nearest row as `datasets` rounds them.
RowRange rows_of(const SplitSlice& slice, std::int64_t rows);

}  // namespace tessera::data
