#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "chat/jinja/repr.h"
#include "chat/jinja/runtime.h"
#include "data/decode_bytes.h"
#include "data/mapped_text.h"
#include "data/row_source.h"
#include "data/row_table.h"
#include "data/text_rows.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using chat::Value;

std::string text_of(const Value& value, const std::string& column, const SourceRow& row) {
  if (value.is_text()) return value.text();
  if (value.is<bool>() || value.number()) return chat::to_text(value);
  throw DataError(
      fmt::format("{}: column '{}' must be a string or a number, found {}", where(row), column, called(value, row)),
      *row.file, row.number);
}

bool is_integer(const Value& value, const SourceRow& row) {
  if (!value.is_text()) return !value.is<bool>() && value.integer();
  const std::string& text = value.text();
  return row.columns != nullptr && !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

/// Rows of one file, of which the first decides which columns are meant.
class PairReader {
 public:
  explicit PairReader(const ReadOptions& options) : options_(options) { chosen_.inside = options.inside; }

  TextPair read(const SourceRow& row) {
    const auto object = columns_of(row);
    choose(*object, row);
    const auto text = [&](const std::string& column) {
      return text_of(*object->find(std::string_view(column)), column, row);
    };
    TextPair out{text(chosen_.text_column), "", *row.file, row.number};
    for (const auto& column : options_.more_text_columns) out.source += options_.text_delimiter + text(column);
    if (!chosen_.pair_column.empty()) out.second = text(chosen_.pair_column);
    if (options_.without_labels) return out;
    const Value& target = *object->find(std::string_view(chosen_.label_column));
    if (!options_.takes_lists || !target.is<chat::ListPtr>()) {
      out.target = label(target, row);
      return out;
    }
    const auto items = chat::iterate(target);
    if (items.empty()) out.target = "\n";
    for (const auto& item : items) out.target += label(item, row) + "\n";
    return out;
  }

 private:
  chat::DictPtr columns_of(const SourceRow& row) const {
    auto object = parse_row(row);
    if (options_.inside.empty()) return object;
    const Value* inner = object->find(std::string_view(options_.inside));
    if (inner != nullptr && inner->is<chat::DictPtr>()) return *inner->get<chat::DictPtr>();
    fail(row, fmt::format("expected the column '{}' with an object such as {{\"en\": ..., \"de\": ...}}, found {}",
                          options_.inside, inner ? called(*inner, row) : "no such column"));
  }

  void choose(const chat::Dict& object, const SourceRow& row) {
    const auto has = [&](const std::string& column) { return object.find(std::string_view(column)) != nullptr; };
    const bool has_label = options_.without_labels || has(chosen_.label_column);
    const bool has_second = chosen_.pair_column.empty() || has(chosen_.pair_column);
    const bool has_more = std::ranges::all_of(options_.more_text_columns, has);
    if (!chosen_.text_column.empty() && has(chosen_.text_column) && has_more && has_second && has_label) return;
    std::vector<std::string> columns;
    for (const auto& [key, value] : object.items()) columns.push_back(key.text());
    const auto names = choose_columns(*row.file, row.number, columns, chosen_.text_column.empty() ? options_ : chosen_);
    chosen_.text_column = names.text;
    chosen_.label_column = names.label;
    chosen_.pair_column = names.second;
  }

  std::string label(const Value& value, const SourceRow& row) const {
    return label_text(*row.file, row.number, text_of(value, chosen_.label_column, row), is_integer(value, row),
                      options_);
  }

  const ReadOptions& options_;
  ReadOptions chosen_;
};

bool is_text(const std::string& file) {
  return data_ending(file) == ".txt";
}

void decode(SourceRow& row, std::vector<std::string>& columns) {
  row.json = latin1_to_utf8(row.json);
  for (auto& field : row.fields) field = latin1_to_utf8(field);
  if (row.columns == nullptr) return;
  columns = *row.columns;
  for (auto& column : columns) column = latin1_to_utf8(column);
  row.columns = &columns;
}

std::vector<TextPair> rows_of(const std::string& file, const ReadOptions& options) {
  std::vector<TextPair> rows;
  std::vector<std::string> columns;
  PairReader reader(options);
  const auto source = open_rows(file, "");
  for (SourceRow row; source->next(row);) {
    if (options.encoding == FileEncoding::kLatin1 && row.object == nullptr) decode(row, columns);
    rows.push_back(reader.read(row));
  }
  return rows;
}

std::vector<TextPair> phrases_of(const std::string& file, const ReadOptions& options) {
  const MappedText mapped(file);
  return mapped.read([&] {
    TextLines lines(file, mapped.text());  // a line that is too long is found before anything is made of it
    for (std::string_view line; lines.next(line);) continue;
    const auto decoded = decode_bytes(file, mapped.text(), options.encoding);
    return read_phrase_bank(file, decoded ? std::string_view(*decoded) : mapped.text());
  });
}

}  // namespace

std::vector<TextPair> read_pairs(const std::string& file, const ReadOptions& options) {
  if (is_text(file) && !(options.pair_column.empty() && options.more_text_columns.empty()))
    throw DataError(fmt::format("{}: a line holds one text, and {} asks for more; leave it out, or give JSONL, JSON, "
                                "CSV or Parquet",
                                file,
                                options.pair_column.empty() ? fmt::format("--text_column {},{}", options.text_column,
                                                                          fmt::join(options.more_text_columns, ","))
                                                            : "--text_pair_column " + options.pair_column),
                    file);
  auto rows = is_text(file) ? phrases_of(file, options) : rows_of(file, options);
  if (rows.empty()) throw DataError(fmt::format("{}: no rows in this file", file), file);
  return rows;
}

std::string columns_note(const std::string& file, const ReadOptions& options) {
  if (is_text(file) || !options.inside.empty() || (!options.text_column.empty() && !options.label_column.empty()))
    return {};
  SourceRow row;
  const auto source = open_rows(file, "");
  if (!source->next(row)) return {};
  std::vector<std::string> columns;
  const auto object = parse_row(row);
  for (const auto& [key, value] : object->items()) columns.push_back(key.text());
  const auto names = choose_columns(file, row.number, columns, options);
  std::vector<std::string> texts{names.text};
  texts.insert(texts.end(), options.more_text_columns.begin(), options.more_text_columns.end());
  std::erase_if(columns, [&](const auto& column) {
    return std::ranges::find(texts, column) != texts.end() || column == names.label || column == names.second;
  });
  if (columns.empty()) return {};
  return fmt::format("{}: the text is column '{}'{}{}; not read: {}. --text_column and --label_column choose others",
                     file, fmt::join(texts, "' and '"),
                     names.second.empty() ? "" : " with column '" + names.second + "'",
                     names.label.empty() ? "" : ", the label column '" + names.label + "'", fmt::join(columns, ", "));
}

}  // namespace tessera::data
