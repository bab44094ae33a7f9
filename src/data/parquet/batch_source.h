#pragma once
// Rows of Arrow's record batches. Compiled where Arrow's C++ library is found (cmake/Parquet.cmake).
#include <arrow/api.h>
#include <arrow/io/memory.h>

#include <cstdint>
#include <memory>
#include <string>

#include "data/row_source.h"
#include "io/mapped_file.h"

namespace tessera::data {

/// What a file makes a reader allocate, together: a few bytes may stand for gigabytes before they were compressed.
class CappedMemory : public arrow::ProxyMemoryPool {
 public:
  explicit CappedMemory(std::int64_t most_bytes) : ProxyMemoryPool(arrow::default_memory_pool()), most_(most_bytes) {}
  using ProxyMemoryPool::Allocate;
  using ProxyMemoryPool::Reallocate;

  arrow::Status Allocate(std::int64_t size, std::int64_t alignment, std::uint8_t** out) override;
  arrow::Status Reallocate(std::int64_t old_size, std::int64_t size, std::int64_t alignment,
                           std::uint8_t** out) override;

 private:
  bool fits(std::int64_t more) const { return more <= most_ - bytes_allocated(); }
  arrow::Status too_much() const;

  const std::int64_t most_;
};

/// DataError names the file, and the row and column of a value that cannot be one.
class BatchSource : public RowSource {
 public:
  bool next(SourceRow& row) final;

 protected:
  explicit BatchSource(const std::string& file);
  /// Null at the end.
  virtual std::shared_ptr<arrow::RecordBatch> next_batch() = 0;

  std::shared_ptr<arrow::io::BufferReader> whole_file() const;
  void require(const arrow::Status& status) const;
  template <typename T>
  T take(arrow::Result<T> result) const {
    require(result.status());
    return std::move(result).ValueUnsafe();
  }

  std::string file_;
  CappedMemory memory_{std::int64_t{1} << 30};  // outlives what is read
  io::MappedFile mapped_;

 private:
  bool read(SourceRow& row);

  std::shared_ptr<arrow::RecordBatch> batch_;
  std::int64_t at_ = 0, number_ = 0;
};

}  // namespace tessera::data
