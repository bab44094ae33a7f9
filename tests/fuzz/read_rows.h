#pragma once
// Any bytes as a file of rows: an error or rows.
#include <memory>
#include <string>

#include "data/row_source.h"
#include "fuzz/temporary_file.h"
#include "tessera/base/error.h"

namespace tessera::fuzz {

/// `open`: of the reader's files, whose rows are objects.
inline void read_rows(std::unique_ptr<data::RowSource> (*open)(const std::string& file), const std::uint8_t* data,
                      std::size_t size) {
  try {
    const auto rows = open(as_file(data, size));
    data::SourceRow row;
    for (int n = 0; n < 10'000 && rows->next(row); ++n) {
      if (row.object == nullptr) __builtin_trap();
    }
  } catch (const DataError&) {
  }
}

}  // namespace tessera::fuzz
