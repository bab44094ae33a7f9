#include <fmt/format.h>

#include <algorithm>

#include "data/csv_reader.h"
#include "data/row_table.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

bool is_integer(const std::string& s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::vector<TextPair> read_csv(const std::string& file, std::string_view text, const ReadOptions& options) {
  CsvReader reader(file, text);
  std::vector<std::string> columns, fields;
  std::int64_t line = 0;
  if (!reader.next(columns, line)) return {};
  const auto names = choose_columns(file, line, columns, options);
  const auto index = [&](const std::string& name) {
    return static_cast<std::size_t>(std::find(columns.begin(), columns.end(), name) - columns.begin());
  };
  const auto source = index(names.text), target = index(names.label);
  std::vector<TextPair> rows;
  while (reader.next(fields, line)) {
    if (fields.size() != columns.size())
      throw DataError(fmt::format("{}:{}: expected {} fields as in the header, found {}", file, line, columns.size(),
                                  fields.size()),
                      file, line);
    auto label = label_text(file, line, fields[target], is_integer(fields[target]), options);
    rows.push_back({std::move(fields[source]), std::move(label), file, line});
  }
  return rows;
}

}  // namespace tessera::data
