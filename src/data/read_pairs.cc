#include <fmt/format.h>

#include <filesystem>

#include "data/decode_bytes.h"
#include "data/mapped_text.h"
#include "data/row_table.h"
#include "data/text_rows.h"
#include "tessera/base/error.h"

namespace tessera::data {

namespace {

std::vector<TextPair> rows_of(const std::string& file, std::string_view bytes, const ReadOptions& options) {
  const auto kind = std::filesystem::path(file).extension().string();
  if (kind == ".txt" || kind == ".jsonl") {  // a line that is too long is found before anything is made of it
    TextLines lines(file, bytes);
    for (std::string_view line; lines.next(line);) continue;
  }
  const auto decoded = decode_bytes(file, bytes, options.encoding, kind == ".txt");
  const std::string_view text = decoded ? std::string_view(*decoded) : bytes;
  if (kind == ".txt") return read_phrase_bank(file, text);
  if (kind == ".jsonl") return read_jsonl(file, text, options);
  if (kind == ".json") return read_json(file, text, options);
  if (kind == ".csv") return read_csv(file, text, options);
  throw DataError(fmt::format("{}: expected a file that ends in .txt (sentence@label), .jsonl, .json or .csv", file),
                  file);
}

}  // namespace

std::vector<TextPair> read_pairs(const std::string& file, const ReadOptions& options) {
  const MappedText mapped(file);
  auto rows = mapped.read([&] { return rows_of(file, mapped.text(), options); });
  if (rows.empty()) throw DataError(fmt::format("{}: no rows in this file", file), file);
  return rows;
}

}  // namespace tessera::data
