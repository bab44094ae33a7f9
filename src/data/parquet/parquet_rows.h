#pragma once
#include <memory>
#include <string>

#include "data/row_source.h"

namespace tessera::data {

/// Rows of a Parquet file, one record batch in memory at a time: texts, numbers, lists, structs and maps of any depth,
/// JSON parsed; what JSON has no word for (dates, decimals) as text. DataError names the file, and the row and column
/// of bytes that are not UTF-8; in a build without Arrow (TESSERA_HAVE_PARQUET) it says how to convert the file.
std::unique_ptr<RowSource> open_parquet(const std::string& file);

/// The same of a stream or file of Arrow, as Dataset.save_to_disk() writes it.
std::unique_ptr<RowSource> open_arrow(const std::string& file);

}  // namespace tessera::data
