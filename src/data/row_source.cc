#include "data/row_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/row_limit.h"
#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "data/csv_reader.h"
#include "data/mapped_text.h"
#include "data/parquet/parquet_rows.h"
#include "data/text_rows.h"
#include "data/unpack.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr std::array<std::string_view, 8> kEndings{".jsonl", ".ndjson", ".json",    ".csv",
                                                   ".tsv",   ".txt",    ".parquet", ".arrow"};

/// Rows that are read where they lie in the file.
class MappedSource : public RowSource {
 public:
  explicit MappedSource(const std::string& file) : file_(file) {}
  bool next(SourceRow& row) final {
    return file_.read([&] { return read(row); });
  }

 protected:
  virtual bool read(SourceRow& row) = 0;
  const MappedText file_;
};

class LineSource : public MappedSource {
 public:
  explicit LineSource(const std::string& file) : MappedSource(file), lines_(file, file_.text()) {}
  LineSource(const std::string& file, const std::string& text_column)
      : MappedSource(file), lines_(file, file_.text(), LineEnds::kUniversal), columns_{text_column} {}

 private:
  bool read(SourceRow& row) override {
    std::string_view line;
    if (!lines_.next(line)) return false;
    row = {&file_.name(), lines_.number(), "", {}, nullptr, nullptr};
    if (columns_.empty()) {
      row.json = line;
    } else {
      row.fields = {std::string(line)};
      row.columns = &columns_;
    }
    return true;
  }

  TextLines lines_;
  std::vector<std::string> columns_;  // of plain text: its one column
};

class ArraySource : public MappedSource {
 public:
  explicit ArraySource(const std::string& file)
      : MappedSource(file), elements_(file_.read([&] { return JsonElements(file, file_.text()); })) {}

 private:
  bool read(SourceRow& row) override {
    std::string_view element;
    if (!elements_.next(element)) return false;
    row = {&file_.name(), elements_.number(), std::string(element), {}, nullptr, nullptr};
    return true;
  }

  JsonElements elements_;
};

class CsvSource : public MappedSource {
 public:
  CsvSource(const std::string& file, char separator)
      : MappedSource(file), separator_(separator), reader_(file, file_.text(), CsvDialect::kRfc4180, separator) {
    std::int64_t line = 0;
    file_.read([&] { return reader_.next(columns_, line); });
    if (columns_.size() != 1 || columns_[0].find_first_of(";\t") == std::string::npos) return;
    throw DataError(
        fmt::format("{}:1: expected columns that {} separate, found one, '{}'. Commas separate those of .csv "
                    "files, tabs those of .tsv files",
                    file, separator == ',' ? "commas" : "tabs", columns_[0]),
        file, 1);
  }

 private:
  bool read(SourceRow& row) override {
    row = {&file_.name(), 0, "", {}, &columns_, nullptr};
    if (!reader_.next(row.fields, row.number)) return false;
    if (row.fields.size() != columns_.size())
      throw DataError(fmt::format("{}: expected {} fields as in the header ({}), found {}; {} separate fields",
                                  where(row), columns_.size(), fmt::join(columns_, ", "), row.fields.size(),
                                  separator_ == ',' ? "commas" : "tabs"),
                      file_.name(), row.number);
    return true;
  }

  char separator_;
  CsvReader reader_;
  std::vector<std::string> columns_;
};

std::unique_ptr<RowSource> open_json(const std::string& file, bool is_lines) {
  const MappedText mapped(file);
  const auto is_array = mapped.read([&] {
    const auto begin = mapped.text().find_first_not_of(" \t\r\n");
    const bool is_list = begin != std::string_view::npos && mapped.text()[begin] == '[';
    return is_list || (!is_lines && !is_one_object_a_line(mapped.text()));
  });
  if (is_array) return std::make_unique<ArraySource>(file);
  return std::make_unique<LineSource>(file);
}

}  // namespace

#ifndef TESSERA_HAVE_PARQUET
namespace {

[[noreturn]] void refuse_arrow(const std::string& file, const char* kind, const std::string& reading) {
  throw DataError(fmt::format("{0}: this build reads no {1}; configure it with TESSERA_PYARROW set to the folder of an "
                              "installed pyarrow, or convert the file once: python -c \"{2}('{0}').to_json('{3}', "
                              "orient='records', lines=True)\"",
                              file, kind, reading, std::filesystem::path(file).replace_extension(".jsonl").string()),
                  file);
}

}  // namespace

std::unique_ptr<RowSource> open_parquet(const std::string& file) {
  refuse_arrow(file, "Parquet", "import pandas; pandas.read_parquet");
}

std::unique_ptr<RowSource> open_arrow(const std::string& file) {
  refuse_arrow(file, "Arrow", "import datasets; datasets.Dataset.from_file");
}
#endif

std::string where(const SourceRow& row) {
  return fmt::format("{}:{}", *row.file, row.number);
}

void fail(const SourceRow& row, const std::string& what) {
  throw DataError(fmt::format("{}: {}", where(row), what), *row.file, row.number);
}

std::string called(const chat::Value& value, const SourceRow& row) {
  if (const auto* bytes = value.get<chat::UndefinedPtr>()) return (*bytes)->message;
  if (!value.is_none()) return chat::type_name(value);
  return row.columns != nullptr ? "an empty cell" : "null";
}

std::string data_ending(const std::string& file) {
  return std::filesystem::path(without_packing(file)).extension().string();
}

bool is_data_file(const std::string& file) {
  const std::string ending = data_ending(file);
  return std::find(kEndings.begin(), kEndings.end(), ending) != kEndings.end();
}

std::unique_ptr<RowSource> open_rows(const std::string& file, const std::string& text_column) {
  const std::string ending = data_ending(file);
  if (ending == ".jsonl" || ending == ".ndjson" || ending == ".json") return open_json(file, ending != ".json");
  if (ending == ".csv" || ending == ".tsv") return std::make_unique<CsvSource>(file, ending == ".csv" ? ',' : '\t');
  if (ending == ".txt") return std::make_unique<LineSource>(file, text_column);
  if (ending == ".parquet") return open_parquet(unpacked(file));
  if (ending == ".arrow") return open_arrow(unpacked(file));
  throw DataError(
      fmt::format("{}: expected a file that ends in .jsonl, .json, .csv, .tsv, .txt, .parquet or .arrow", file), file);
}

namespace {

chat::DictPtr whole_row(const SourceRow& row) {
  if (row.object != nullptr) return row.object;
  if (row.columns != nullptr) {
    auto dict = std::make_shared<chat::Dict>();
    for (std::size_t i = 0; i < row.fields.size(); ++i) {
      if (!simdjson::validate_utf8(row.fields[i])) fail(row, "bytes that are not UTF-8; convert the file");
      if (dict->find(std::string_view((*row.columns)[i])) != nullptr) continue;
      dict->set((*row.columns)[i], row.fields[i].empty() ? chat::Value() : chat::Value(row.fields[i]));
    }
    return dict;
  }
  chat::Value value;
  try {
    const auto parsed = without_nan(row.json);
    value = chat::parse_json(parsed ? *parsed : row.json);
  } catch (const chat::TemplateError& e) {
    fail(row, e.message);
  }
  if (!value.is<chat::DictPtr>()) fail(row, fmt::format("expected a JSON object, found {}", chat::type_name(value)));
  return *value.get<chat::DictPtr>();
}

}  // namespace

chat::DictPtr parse_row(const SourceRow& row) {
  auto whole = whole_row(row);
  if (row.kept == nullptr) return whole;
  auto out = std::make_shared<chat::Dict>();
  for (const auto& column : *row.kept)
    if (const auto* value = whole->find(std::string_view(column))) out->set(column, *value);
  if (out->size() == 0)
    throw DataError(fmt::format("{}: the row has none of the columns that --datasets names ({})", where(row),
                                fmt::join(*row.kept, ", ")),
                    *row.file, row.number);
  return out;
}

}  // namespace tessera::data
