// Compiled where Arrow's C++ library is found (cmake/Parquet.cmake). Arrow's memory-mapped reader gives record batches;
// rows become what JSON would give, so that Parquet and JSONL files of the same rows are tokenised alike.
#include "data/parquet/parquet_rows.h"

#include <arrow/api.h>
#include <arrow/io/memory.h>
#include <arrow/util/float16.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/column_page.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>

#include "base/row_limit.h"
#include "chat/jinja/json.h"
#include "data/mapped_text.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using chat::Value;

constexpr std::int64_t kRowsTogether = 1024;  // of one record batch: what is in memory at a time
// A few bytes may stand for very many values, or for gigabytes before they were compressed.
constexpr std::int64_t kMaxReaderBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMaxRowValues = 4 << 20;

/// What a file makes the reader allocate, together.
class CappedMemory : public arrow::ProxyMemoryPool {
 public:
  explicit CappedMemory(std::int64_t most) : ProxyMemoryPool(arrow::default_memory_pool()), most_(most) {}
  using ProxyMemoryPool::Allocate;
  using ProxyMemoryPool::Reallocate;

  arrow::Status Allocate(std::int64_t size, std::int64_t alignment, std::uint8_t** out) override {
    return fits(size) ? ProxyMemoryPool::Allocate(size, alignment, out) : too_much();
  }
  arrow::Status Reallocate(std::int64_t old_size, std::int64_t size, std::int64_t alignment,
                           std::uint8_t** out) override {
    return fits(size - old_size) ? ProxyMemoryPool::Reallocate(old_size, size, alignment, out) : too_much();
  }

 private:
  bool fits(std::int64_t more) const { return more <= most_ - bytes_allocated(); }
  arrow::Status too_much() const {
    return arrow::Status::OutOfMemory("reading takes more than ", most_ >> 20,
                                      " MiB; write it with smaller row groups");
  }

  const std::int64_t most_;
};

/// Makes values of one row, and counts them.
class RowReader {
 public:
  Value value_at(const arrow::Array& array, std::int64_t i);

 private:
  template <typename Lists>
  Value list_value(const arrow::Array& array, std::int64_t i);
  Value struct_value(const arrow::StructArray& structs, std::int64_t i);
  Value map_value(const arrow::MapArray& maps, std::int64_t i);

  std::int64_t values_ = 0;
};

Value text_value(std::string_view bytes, const arrow::Array& array) {
  if (bytes.size() > kMaxRowBytes)
    throw DataError(fmt::format("a value has {} bytes; a row may have at most {}. Cut long texts into rows",
                                bytes.size(), kMaxRowBytes));
  if (!simdjson::validate_utf8(bytes.data(), bytes.size()))
    throw DataError(fmt::format("a value of type {} is not UTF-8 text", array.type()->ToString()));
  return Value(bytes);
}

template <typename Lists>
Value RowReader::list_value(const arrow::Array& array, std::int64_t i) {
  const auto& lists = static_cast<const Lists&>(array);
  std::vector<Value> items;
  for (std::int64_t k = lists.value_offset(i); k < lists.value_offset(i) + lists.value_length(i); ++k)
    items.push_back(value_at(*lists.values(), k));
  return chat::make_list(std::move(items));
}

/// Fields that are null are left out: a column gives every row all fields that any row has.
Value RowReader::struct_value(const arrow::StructArray& structs, std::int64_t i) {
  chat::Dict out;
  for (int f = 0; f < structs.num_fields(); ++f) {
    const auto& field = *structs.field(f);
    if (!field.IsNull(i)) out.set(structs.struct_type()->field(f)->name(), value_at(field, i));
  }
  return chat::make_dict(std::move(out));
}

Value RowReader::map_value(const arrow::MapArray& maps, std::int64_t i) {
  chat::Dict out;
  for (std::int64_t k = maps.value_offset(i); k < maps.value_offset(i) + maps.value_length(i); ++k) {
    const Value key = value_at(*maps.keys(), k);
    out.set(key.is_text() ? key : Value(chat::dump_json(key)), value_at(*maps.items(), k));
  }
  return chat::make_dict(std::move(out));
}

template <typename Numbers>
Value integer_value(const arrow::Array& array, std::int64_t i) {
  return Value(static_cast<std::int64_t>(static_cast<const Numbers&>(array).Value(i)));
}

template <typename Texts>
Value text_at(const arrow::Array& array, std::int64_t i) {
  return text_value(static_cast<const Texts&>(array).GetView(i), array);
}

Value RowReader::value_at(const arrow::Array& array, std::int64_t i) {
  if (++values_ > kMaxRowValues)
    throw DataError(fmt::format("a row with more than {} values; cut it into rows", kMaxRowValues));
  if (array.IsNull(i)) return {};
  switch (array.type_id()) {
    case arrow::Type::NA:
      return {};
    case arrow::Type::BOOL:
      return Value(static_cast<const arrow::BooleanArray&>(array).Value(i));
    case arrow::Type::INT8:
      return integer_value<arrow::Int8Array>(array, i);
    case arrow::Type::INT16:
      return integer_value<arrow::Int16Array>(array, i);
    case arrow::Type::INT32:
      return integer_value<arrow::Int32Array>(array, i);
    case arrow::Type::INT64:
      return integer_value<arrow::Int64Array>(array, i);
    case arrow::Type::UINT8:
      return integer_value<arrow::UInt8Array>(array, i);
    case arrow::Type::UINT16:
      return integer_value<arrow::UInt16Array>(array, i);
    case arrow::Type::UINT32:
      return integer_value<arrow::UInt32Array>(array, i);
    case arrow::Type::HALF_FLOAT:
      return Value(static_cast<double>(
          arrow::util::Float16::FromBits(static_cast<const arrow::HalfFloatArray&>(array).Value(i)).ToFloat()));
    case arrow::Type::FLOAT:
      return Value(static_cast<double>(static_cast<const arrow::FloatArray&>(array).Value(i)));
    case arrow::Type::DOUBLE:
      return Value(static_cast<const arrow::DoubleArray&>(array).Value(i));
    case arrow::Type::STRING:
      return text_at<arrow::StringArray>(array, i);
    case arrow::Type::LARGE_STRING:
      return text_at<arrow::LargeStringArray>(array, i);
    case arrow::Type::STRING_VIEW:
      return text_at<arrow::StringViewArray>(array, i);
    case arrow::Type::BINARY:
      return text_at<arrow::BinaryArray>(array, i);
    case arrow::Type::LARGE_BINARY:
      return text_at<arrow::LargeBinaryArray>(array, i);
    case arrow::Type::LIST:
      return list_value<arrow::ListArray>(array, i);
    case arrow::Type::LARGE_LIST:
      return list_value<arrow::LargeListArray>(array, i);
    case arrow::Type::FIXED_SIZE_LIST:
      return list_value<arrow::FixedSizeListArray>(array, i);
    case arrow::Type::STRUCT:
      return struct_value(static_cast<const arrow::StructArray&>(array), i);
    case arrow::Type::MAP:
      return map_value(static_cast<const arrow::MapArray&>(array), i);
    case arrow::Type::DICTIONARY: {
      const auto& words = static_cast<const arrow::DictionaryArray&>(array);
      return value_at(*words.dictionary(), words.GetValueIndex(i));
    }
    case arrow::Type::EXTENSION:
      return value_at(*static_cast<const arrow::ExtensionArray&>(array).storage(), i);
    default: {  // dates, times, decimals, integers above 2^63: as text
      const auto scalar = array.GetScalar(i);
      return Value(scalar.ok() ? (*scalar)->ToString() : array.type()->ToString());
    }
  }
}

class ParquetSource : public RowSource {
 public:
  explicit ParquetSource(const std::string& file) : file_(file), mapped_(io::InputFile(file), kRowsInPlace) {
    reader_ = mapped_.read([this] { return open_file(); });
  }

  bool next(SourceRow& row) override {
    return mapped_.read([&] { return read(row); });
  }

 private:
  std::unique_ptr<parquet::arrow::FileReader> open_file() {
    auto buffer = std::make_shared<arrow::Buffer>(reinterpret_cast<const std::uint8_t*>(mapped_.data()),
                                                  static_cast<std::int64_t>(mapped_.size()));
    parquet::arrow::FileReaderBuilder builder;
    require(builder.memory_pool(&memory_)->Open(std::make_shared<arrow::io::BufferReader>(std::move(buffer)),
                                                parquet::ReaderProperties(&memory_)));
    parquet::ArrowReaderProperties properties;
    try {
      properties.set_batch_size(rows_together(*builder.raw_reader()));
    } catch (const parquet::ParquetException& e) {
      throw DataError(fmt::format("{}: a damaged dictionary: {}", file_, e.what()), file_);
    }
    return take(builder.properties(properties)->Build());
  }

  bool read(SourceRow& row) {
    while (batch_ == nullptr || at_ == batch_->num_rows()) {
      at_ = 0;
      if (!next_batch()) return false;
    }
    auto object = std::make_shared<chat::Dict>();
    row = {&file_, ++number_, "", {}, nullptr, nullptr};
    RowReader reader;
    for (int c = 0; c < batch_->num_columns(); ++c) {
      try {
        object->set(batch_->column_name(c), reader.value_at(*batch_->column(c), at_));
      } catch (const DataError& e) {
        throw DataError(fmt::format("{}: column \"{}\": {}", where(row), batch_->column_name(c), e.what()), file_,
                        number_);
      }
    }
    ++at_;
    row.object = std::move(object);
    return true;
  }

  /// As many rows as may lie in memory together, by the sizes that the file states of its row groups and by the longest
  /// words of their dictionaries, which any number of rows may name. DataError where the rows of a group are too long.
  std::int64_t rows_together(parquet::ParquetFileReader& reader) const {
    constexpr auto kBudget = static_cast<std::int64_t>(kMaxRowBytes);
    const auto file = reader.metadata();
    std::int64_t rows = kRowsTogether, before = 0;
    for (int g = 0; g < file->num_row_groups(); ++g) {
      const auto group = file->RowGroup(g);
      const std::int64_t group_rows = std::max<std::int64_t>(1, group->num_rows());
      std::int64_t bytes_per_row = group->total_byte_size() / group_rows;
      if (bytes_per_row > kBudget) fail_long_row(file_, before + 1);
      for (int c = 0; c < group->num_columns(); ++c) {
        const std::int64_t values_per_row = (group->ColumnChunk(c)->num_values() + group_rows - 1) / group_rows;
        bytes_per_row += longest_word(reader, g, c) * values_per_row;
      }
      rows = std::clamp<std::int64_t>(kBudget / std::max<std::int64_t>(1, bytes_per_row), 1, rows);
      before += group->num_rows();
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
  bool next_batch() {
    batch_ = nullptr;
    while (batch_ == nullptr) {
      if (batches_ == nullptr) {
        if (group_ == reader_->num_row_groups()) return false;
        batches_ = take(reader_->GetRecordBatchReader({group_++}));
      }
      require(batches_->ReadNext(&batch_));
      if (batch_ == nullptr) batches_ = nullptr;
    }
    return true;
  }

  void require(const arrow::Status& status) const {
    if (!status.ok()) throw DataError(fmt::format("{}: {}", file_, status.ToString()), file_);
  }
  template <typename T>
  T take(arrow::Result<T> result) const {
    require(result.status());
    return std::move(result).ValueUnsafe();
  }

  std::string file_;
  CappedMemory memory_{kMaxReaderBytes};  // outlives what is read
  io::MappedFile mapped_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  int group_ = 0;
  std::int64_t at_ = 0, number_ = 0;
};

}  // namespace

std::unique_ptr<RowSource> open_parquet(const std::string& file) {
  return std::make_unique<ParquetSource>(file);
}

}  // namespace tessera::data
