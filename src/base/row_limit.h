#pragma once
// How long a row of a data file may be. A longer one is a file of another kind, or one whose line ends are gone; what
// it takes in memory is many times its length, so it is refused before it is parsed.
#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera {

inline constexpr std::size_t kMaxRowBytes = 64 << 20;

/// Throws the DataError of a longer one, which begins in this line (or is the row of this number).
[[noreturn]] void fail_long_row(const std::string& file, std::int64_t line, std::size_t max_bytes = kMaxRowBytes);

}  // namespace tessera
