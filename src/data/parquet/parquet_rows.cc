#include "data/parquet/parquet_rows.h"

#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/column_page.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <cstring>

#include "base/row_limit.h"
#include "data/parquet/batch_source.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kRowsTogether = 1024;  // of one record batch: what is in memory at a time

class ParquetSource : public BatchSource {
 public:
  explicit ParquetSource(const std::string& file) : BatchSource(file) {
    reader_ = mapped_.read([this] { return open_file(); });
  }

 private:
  std::unique_ptr<parquet::arrow::FileReader> open_file() {
    parquet::arrow::FileReaderBuilder builder;
    require(builder.memory_pool(&memory_)->Open(whole_file(), parquet::ReaderProperties(&memory_)));
    parquet::ArrowReaderProperties properties;
    properties.set_arrow_extensions_enabled(true);
    try {
      properties.set_batch_size(rows_together(*builder.raw_reader()));
    } catch (const parquet::ParquetException& e) {
      throw DataError(fmt::format("{}: a damaged dictionary: {}", file_, e.what()), file_);
    }
    return take(builder.properties(properties)->Build());
  }

  /// As many rows as may lie in memory together, by the sizes that the file states of its row groups and by the longest
  /// words of their dictionaries, which any number of rows may name. Whatever numbers a file states, sums stay in 64
  /// bits. DataError where the rows of a group are too long.
  std::int64_t rows_together(parquet::ParquetFileReader& reader) const {
    constexpr auto kBudget = static_cast<std::int64_t>(kMaxRowBytes);
    const auto file = reader.metadata();
    std::int64_t rows = kRowsTogether;
    std::uint64_t before = 0;
    for (int g = 0; g < file->num_row_groups(); ++g) {
      const auto group = file->RowGroup(g);
      const std::int64_t group_rows = std::max<std::int64_t>(1, group->num_rows());
      std::int64_t bytes_per_row = group->total_byte_size() / group_rows;
      if (bytes_per_row > kBudget) fail_long_row(file_, static_cast<std::int64_t>(before + 1));
      for (int c = 0; c < group->num_columns(); ++c) {
        const std::int64_t values = group->ColumnChunk(c)->num_values();
        const auto values_per_row =
            std::clamp<std::int64_t>(values / group_rows + (values % group_rows > 0), 0, kBudget);
        bytes_per_row = std::min(bytes_per_row + longest_word(reader, g, c) * values_per_row, kBudget);
      }
      rows = std::clamp<std::int64_t>(kBudget / std::max<std::int64_t>(1, bytes_per_row), 1, rows);
      before += static_cast<std::uint64_t>(group->num_rows());
    }
    return rows;
  }

  /// Of a column's dictionary in a row group, in bytes; 0: it has none of texts. Such a page holds lengths (32 bits,
  /// little-endian), each followed by its word.
  static std::int64_t longest_word(parquet::ParquetFileReader& reader, int group, int column) {
    const auto chunk = reader.metadata()->RowGroup(group)->ColumnChunk(column);
    if (chunk->type() != parquet::Type::BYTE_ARRAY || !chunk->has_dictionary_page()) return 0;
    const auto pages = reader.RowGroup(group)->GetColumnPageReader(column);
    const auto page = pages->NextPage();  // its bytes are the reader's
    if (page == nullptr || page->type() != parquet::PageType::DICTIONARY_PAGE) return 0;
    std::int64_t longest = 0;
    for (std::int64_t at = 0; at + 4 <= page->size();) {
      std::uint32_t length = 0;
      std::memcpy(&length, page->data() + at, sizeof(length));
      longest = std::max<std::int64_t>(longest, length);
      at += 4 + static_cast<std::int64_t>(length);
    }
    return longest;
  }

  /// One row group after another: Arrow cannot join the dictionaries of two groups inside lists and structs.
  std::shared_ptr<arrow::RecordBatch> next_batch() override {
    std::shared_ptr<arrow::RecordBatch> batch;
    while (batch == nullptr) {
      if (batches_ == nullptr) {
        if (group_ == reader_->num_row_groups()) {
          check_count();
          return nullptr;
        }
        batches_ = take(reader_->GetRecordBatchReader({group_++}));
      }
      require(batches_->ReadNext(&batch));
      if (batch == nullptr) batches_ = nullptr;
    }
    rows_ += batch->num_rows();
    return batch;
  }

  /// Arrow leaves rows out where the columns of a damaged file have other lengths.
  void check_count() const {
    const auto stated = reader_->parquet_reader()->metadata()->num_rows();
    if (rows_ == stated) return;
    throw DataError(fmt::format("{}: damaged: it states {} rows, {} can be read", file_, stated, rows_), file_);
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  int group_ = 0;
  std::int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<RowSource> open_parquet(const std::string& file) {
  return std::make_unique<ParquetSource>(file);
}

}  // namespace tessera::data
