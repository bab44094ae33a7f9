#include "base/row_limit.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera {

void fail_long_row(const std::string& file, std::int64_t line, std::size_t max_bytes) {
  throw DataError(
      fmt::format("{}:{}: this row has more than {} bytes, the most a row may have. Is its end (of the line, "
                  "or of a quoted field) missing? Cut long texts into rows",
                  file, line, max_bytes),
      file, line);
}

}  // namespace tessera
