#pragma once
// Tokenised rows in a file: written once, in order, then mapped by every process that needs them.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "data/sft_dataset.h"
#include "io/mapped_file.h"

namespace tessera::data {

/// The file: rows ({tokens, documents} int32, ids, labels, document lengths), then the offset of each row (int64), then
/// a fixed tail. All little endian.
class RowCache {
 public:
  /// Null when the file does not exist or is not one that this version wrote.
  static std::shared_ptr<const RowCache> open(const std::string& path);

  std::int64_t size() const { return size_; }
  std::int64_t total_tokens() const { return total_tokens_; }
  // Of a row: DataError when the file has changed since it was opened.
  std::int64_t row_length(std::int64_t i) const;
  std::vector<std::int32_t> document_lengths(std::int64_t i) const;
  SftRow copy(std::int64_t i) const;
  RowMark mark(std::int64_t i) const;
  /// Notes that were made when the rows were tokenised.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct View {
    std::int32_t tokens, documents;
    const std::int32_t* ids;
    const std::int32_t* labels;
    const std::int32_t* document_lengths;
  };
  explicit RowCache(const io::InputFile& file);
  View row(std::int64_t i) const;

  std::string path_;
  io::MappedFile file_;
  std::int64_t offsets_at_ = 0, size_ = 0, total_tokens_ = 0;
  std::vector<std::string> notes_;
};

/// Writes to a temporary name; finish() gives the file its own. Without finish() nothing stays behind.
class RowCacheWriter {
 public:
  /// CheckpointError when the folder cannot be written.
  explicit RowCacheWriter(const std::string& path);
  ~RowCacheWriter();
  RowCacheWriter(const RowCacheWriter&) = delete;
  RowCacheWriter& operator=(const RowCacheWriter&) = delete;

  void add(const SftRow& row);
  void finish(const std::vector<std::string>& notes);

 private:
  void write(const void* data, std::size_t bytes);
  void write_offsets();
  void flush();

  std::string path_, temporary_;
  std::FILE* file_ = nullptr;
  std::int64_t rows_ = 0, written_ = 0, total_tokens_ = 0;
};

}  // namespace tessera::data
