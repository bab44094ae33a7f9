// Rows become what JSON would give, so that files of Arrow and JSONL files of the same rows are tokenised alike.
#include "data/parquet/batch_source.h"

#include <arrow/util/float16.h>
#include <fmt/format.h>
#include <simdjson.h>

#include "base/row_limit.h"
#include "chat/jinja/integer.h"
#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "data/mapped_text.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using chat::Value;

constexpr std::int64_t kMaxRowValues = 4 << 20;  // a few bytes of a file may stand for very many

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

/// Texts are stored as bytes, too; of other bytes (pictures) only whoever needs a text hears.
template <typename Bytes>
Value bytes_at(const arrow::Array& array, std::int64_t i) {
  const std::string_view bytes = static_cast<const Bytes&>(array).GetView(i);
  if (!simdjson::validate_utf8(bytes.data(), bytes.size()))
    return chat::make_undefined("bytes that are not UTF-8 text");
  return text_value(bytes, array);
}

/// What lies in a column of JSON (the feature Json of `datasets`).
Value parsed(const Value& json) {
  if (!json.is_text()) return json;
  try {
    return chat::parse_json(json.text());
  } catch (const chat::TemplateError& e) {
    throw DataError(fmt::format("a value of type JSON is {}", e.message));
  }
}

/// Keys of a map are texts in JSON.
Value key_of(const Value& key) {
  if (key.is_text()) return key;
  try {
    return Value(chat::dump_json(key));
  } catch (const chat::TemplateError&) {
    throw DataError("a map has keys of bytes that are not UTF-8 text");
  }
}

template <typename Lists>
Value RowReader::list_value(const arrow::Array& array, std::int64_t i) {
  const auto& lists = static_cast<const Lists&>(array);
  std::vector<Value> items;
  for (std::int64_t k = lists.value_offset(i); k < lists.value_offset(i) + lists.value_length(i); ++k)
    items.push_back(value_at(*lists.values(), k));
  return chat::make_list(std::move(items));
}

/// Fields that are null are left out: a column gives every row all fields that any row has. A message's content is
/// kept: where it is null, tools are called, and templates ask for that.
Value RowReader::struct_value(const arrow::StructArray& structs, std::int64_t i) {
  chat::Dict out;
  for (int f = 0; f < structs.num_fields(); ++f) {
    const auto& field = *structs.field(f);
    const std::string& name = structs.struct_type()->field(f)->name();
    if (!field.IsNull(i) || name == "content") out.set(name, value_at(field, i));
  }
  return chat::make_dict(std::move(out));
}

Value RowReader::map_value(const arrow::MapArray& maps, std::int64_t i) {
  chat::Dict out;
  for (std::int64_t k = maps.value_offset(i); k < maps.value_offset(i) + maps.value_length(i); ++k) {
    const Value key = key_of(value_at(*maps.keys(), k));
    out.set(key, value_at(*maps.items(), k));
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
      return bytes_at<arrow::BinaryArray>(array, i);
    case arrow::Type::LARGE_BINARY:
      return bytes_at<arrow::LargeBinaryArray>(array, i);
    case arrow::Type::BINARY_VIEW:
      return bytes_at<arrow::BinaryViewArray>(array, i);
    case arrow::Type::FIXED_SIZE_BINARY:
      return bytes_at<arrow::FixedSizeBinaryArray>(array, i);
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
    case arrow::Type::UINT64:
      return *chat::Integer::parse(std::to_string(static_cast<const arrow::UInt64Array&>(array).Value(i)));
    case arrow::Type::EXTENSION: {
      const auto& extension = static_cast<const arrow::ExtensionArray&>(array);
      const Value stored = value_at(*extension.storage(), i);
      return extension.extension_type()->extension_name() == "arrow.json" ? parsed(stored) : stored;
    }
    default: {  // dates, times, decimals: as text
      const auto scalar = array.GetScalar(i);
      return Value(scalar.ok() ? (*scalar)->ToString() : array.type()->ToString());
    }
  }
}

}  // namespace

arrow::Status CappedMemory::Allocate(std::int64_t size, std::int64_t alignment, std::uint8_t** out) {
  return fits(size) ? ProxyMemoryPool::Allocate(size, alignment, out) : too_much();
}

arrow::Status CappedMemory::Reallocate(std::int64_t old_size, std::int64_t size, std::int64_t alignment,
                                       std::uint8_t** out) {
  return fits(size - old_size) ? ProxyMemoryPool::Reallocate(old_size, size, alignment, out) : too_much();
}

arrow::Status CappedMemory::too_much() const {
  return arrow::Status::OutOfMemory("reading takes more than ", most_ >> 20, " MiB; write it with smaller row groups");
}

BatchSource::BatchSource(const std::string& file) : file_(file), mapped_(io::InputFile(file), kRowsInPlace) {}

bool BatchSource::next(SourceRow& row) {
  return mapped_.read([&] { return read(row); });
}

std::shared_ptr<arrow::io::BufferReader> BatchSource::whole_file() const {
  return std::make_shared<arrow::io::BufferReader>(std::make_shared<arrow::Buffer>(
      reinterpret_cast<const std::uint8_t*>(mapped_.data()), static_cast<std::int64_t>(mapped_.size())));
}

bool BatchSource::read(SourceRow& row) {
  while (batch_ == nullptr || at_ == batch_->num_rows()) {
    at_ = 0;
    batch_ = next_batch();
    if (batch_ == nullptr) return false;
  }
  auto object = std::make_shared<chat::Dict>();
  row = {&file_, ++number_, "", {}, nullptr, nullptr};
  RowReader reader;
  for (int c = 0; c < batch_->num_columns(); ++c) {
    const auto fail = [&](const std::string& message) {
      throw DataError(fmt::format("{}: column \"{}\": {}", where(row), batch_->column_name(c), message), file_,
                      number_);
    };
    try {
      object->set(batch_->column_name(c), reader.value_at(*batch_->column(c), at_));
    } catch (const DataError& e) {
      fail(e.what());
    } catch (const chat::TemplateError& e) {  // values nest too deep
      fail(e.message);
    }
  }
  ++at_;
  row.object = std::move(object);
  return true;
}

void BatchSource::require(const arrow::Status& status) const {
  if (!status.ok()) throw DataError(fmt::format("{}: {}", file_, status.ToString()), file_);
}

}  // namespace tessera::data
