#include <fmt/format.h>

#include <filesystem>

#include "data/decode_bytes.h"
#include "data/mapped_text.h"
#include "data/row_table.h"
#include "data/text_rows.h"
#include "tessera/base/error.h"

namespace tessera::data {

std::vector<TextPair> read_pairs(const std::string& file, const ReadOptions& options) {
  const auto kind = std::filesystem::path(file).extension().string();
  const MappedText mapped(file);
  if (kind == ".txt" || kind == ".jsonl") {  // a line that is too long is found before anything is made of it
    TextLines lines(file, mapped.text());
    for (std::string_view line; lines.next(line);) continue;
  }
  const auto decoded = decode_bytes(file, mapped.text(), options.encoding, kind == ".txt");
  const std::string_view text = decoded ? std::string_view(*decoded) : mapped.text();
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
