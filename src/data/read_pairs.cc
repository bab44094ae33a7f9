#include <fmt/format.h>

#include <filesystem>

#include "base/file.h"
#include "data/decode_bytes.h"
#include "data/row_table.h"
#include "tessera/base/error.h"

namespace tessera::data {

std::vector<TextPair> read_pairs(const std::string& file, const ReadOptions& options) {
  const auto kind = std::filesystem::path(file).extension().string();
  const auto text = decode_bytes(file, read_file(file), options.encoding, kind == ".txt");
  std::vector<TextPair> rows;
  if (kind == ".txt")
    rows = read_phrase_bank(file, text);
  else if (kind == ".jsonl")
    rows = read_jsonl(file, text, options);
  else if (kind == ".json")
    rows = read_json(file, text, options);
  else if (kind == ".csv")
    rows = read_csv(file, text, options);
  else
    throw DataError(fmt::format("{}: expected a file that ends in .txt (sentence@label), .jsonl, .json or .csv", file),
                    file);
  if (rows.empty()) throw DataError(fmt::format("{}: no rows in this file", file), file);
  return rows;
}

}  // namespace tessera::data
