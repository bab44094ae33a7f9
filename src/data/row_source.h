#pragma once
// The rows of one data file, one after the other, without holding the file in memory.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/value.h"

namespace tessera::data {

/// A row before it is parsed.
struct SourceRow {
  const std::string* file = nullptr;
  std::int64_t number = 0;          // the line; in a .json file the number of the row
  std::string json;                 // of .jsonl and .json
  std::vector<std::string> fields;  // of .csv, .tsv and .txt
  const std::vector<std::string>* columns = nullptr;
  chat::DictPtr object;                            // of .parquet and .arrow
  const std::vector<std::string>* kept = nullptr;  // the columns that parse_row() gives; null: all
};

class RowSource {
 public:
  virtual ~RowSource() = default;
  /// False at the end. DataError when the file has changed since it was opened.
  virtual bool next(SourceRow& row) = 0;
};

/// .jsonl (also .ndjson; an object a line), .json (an array of objects, also below "data", one object, or an object a
/// line), .csv and .tsv (with a header), .txt (a row a line, blank lines left out; the column is called `text_column`),
/// .parquet, .arrow; each also compressed (unpack.h). DataError for other endings; in a build without Arrow it says how
/// to convert these two.
std::unique_ptr<RowSource> open_rows(const std::string& file, const std::string& text_column);
bool is_data_file(const std::string& file);
/// ".jsonl" of rows.jsonl and rows.jsonl.gz.
std::string data_ending(const std::string& file);

/// The row as an object. Of a table an empty cell is none, and of columns with one name the first counts; NaN is none,
/// too. DataError names file and row: bad JSON, no object, bytes that are not UTF-8.
chat::DictPtr parse_row(const SourceRow& row);

/// "file:12", as messages begin.
std::string where(const SourceRow& row);
/// DataError that says so, and where.
[[noreturn]] void fail(const SourceRow& row, const std::string& what);
/// What messages call a value of the row: its type, "null", or "an empty cell" of a table.
std::string called(const chat::Value& value, const SourceRow& row);

}  // namespace tessera::data
