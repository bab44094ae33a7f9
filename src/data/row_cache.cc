#include "data/row_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/crc32c.h"
#include "base/temporary_file.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr std::uint64_t kMagic = 0x3154465352535354;  // "TSSRSFT1"

struct Tail {
  std::int64_t rows, total_tokens, offsets_at, notes_at, notes_bytes;
  std::uint64_t magic;
};

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw CheckpointError(
      fmt::format("{}: cannot {} the cache of tokenised rows: {}; name another folder with --dataset_cache_dir", path,
                  what, std::strerror(errno)),
      path);
}

}  // namespace

std::shared_ptr<const RowCache> RowCache::open(const std::string& path) {
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code)) return nullptr;
  const io::InputFile file(path);
  Tail tail{};
  if (file.size_bytes() < sizeof(Tail)) return nullptr;
  const auto body = static_cast<std::int64_t>(file.size_bytes() - sizeof(Tail));
  file.read(static_cast<std::uint64_t>(body), &tail, sizeof(Tail));
  const bool sound = tail.magic == kMagic && tail.rows >= 0 && tail.notes_bytes >= 0 && tail.offsets_at >= 0 &&
                     tail.rows <= body / 8 && tail.notes_at == tail.offsets_at + tail.rows * 8 &&
                     tail.notes_at + tail.notes_bytes == body;
  if (!sound) return nullptr;
  const std::shared_ptr<RowCache> out(new RowCache(file));
  out->offsets_at_ = tail.offsets_at;
  out->size_ = tail.rows;
  out->total_tokens_ = tail.total_tokens;
  out->notes_ = out->file_.read([&] {
    std::vector<std::string> all;
    auto notes =
        out->file_.text().substr(static_cast<std::size_t>(tail.notes_at), static_cast<std::size_t>(tail.notes_bytes));
    while (!notes.empty()) {
      const auto end = std::min(notes.find('\n'), notes.size());
      all.emplace_back(notes.substr(0, end));
      notes.remove_prefix(std::min(end + 1, notes.size()));
    }
    return all;
  });
  return out;
}

RowCache::RowCache(const io::InputFile& file)
    : path_(file.path()),
      file_(file,
            "Tokenised rows are read where they lie in it: start again, and they are made anew where they are not "
            "whole") {}

RowCache::View RowCache::row(std::int64_t i) const {
  TESSERA_CHECK(i >= 0 && i < size_, "no such row");
  std::int64_t offset = 0;
  std::memcpy(&offset, file_.data() + offsets_at_ + i * 8, 8);
  const bool starts_inside = offset >= 0 && offset % 4 == 0 && offset + 8 <= offsets_at_;
  View view{};
  if (starts_inside) {
    const auto* numbers = reinterpret_cast<const std::int32_t*>(file_.data() + offset);
    view = {numbers[0], numbers[1], numbers + 2, nullptr, nullptr};
  }
  const auto bytes = 8 + 4 * (2 * std::int64_t{view.tokens} + view.documents);
  if (!starts_inside || view.tokens < 0 || view.documents < 0 || bytes > offsets_at_ - offset)
    throw DataError(
        fmt::format("{}: row {} of the cache of tokenised rows does not lie in it; remove the file", path_, i), path_);
  view.labels = view.ids + view.tokens;
  view.document_lengths = view.labels + view.tokens;
  return view;
}

std::int64_t RowCache::row_length(std::int64_t i) const {
  return file_.read([&] { return std::int64_t{row(i).tokens}; });
}

std::vector<std::int32_t> RowCache::document_lengths(std::int64_t i) const {
  return file_.read([&] {
    const View view = row(i);
    return std::vector<std::int32_t>(view.document_lengths, view.document_lengths + view.documents);
  });
}

SftRow RowCache::copy(std::int64_t i) const {
  return file_.read([&] {
    const View view = row(i);
    return SftRow{{view.ids, view.ids + view.tokens},
                  {view.labels, view.labels + view.tokens},
                  {view.document_lengths, view.document_lengths + view.documents}};
  });
}

RowMark RowCache::mark(std::int64_t i) const {
  return file_.read([&] {
    const View view = row(i);
    const auto* begin = view.ids - 2;  // the row as it lies in the file
    const auto* end = view.document_lengths + view.documents;
    return RowMark{view.tokens, crc32c(begin, static_cast<std::size_t>(end - begin) * sizeof(*begin))};
  });
}

RowCacheWriter::RowCacheWriter(const std::string& path) : path_(path) {
  std::error_code code;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), code);
  TemporaryFile file = open_temporary(path);
  temporary_ = file.name;
  if (file.descriptor.get() < 0) fail(temporary_, "create");
  file_ = ::fdopen(file.descriptor.get(), "wb");
  if (file_ == nullptr) fail(temporary_, "create");
  file.descriptor.release();
}

RowCacheWriter::~RowCacheWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::remove(temporary_.c_str());
}

void RowCacheWriter::write(const void* data, std::size_t bytes) {
  if (std::fwrite(data, 1, bytes, file_) != bytes) fail(temporary_, "write");
  written_ += static_cast<std::int64_t>(bytes);
}

void RowCacheWriter::add(const SftRow& row) {
  const std::int32_t sizes[2] = {static_cast<std::int32_t>(row.input_ids.size()),
                                 static_cast<std::int32_t>(row.document_lengths.size())};
  write(sizes, sizeof(sizes));
  for (const auto* numbers : {&row.input_ids, &row.labels, &row.document_lengths})
    write(numbers->data(), numbers->size() * sizeof(std::int32_t));
  total_tokens_ += sizes[0];
  ++rows_;
}

void RowCacheWriter::flush() {
  if (std::fflush(file_) != 0) fail(temporary_, "write");
}

// Found again in the file, from row to row: kept in memory they would grow with the data.
void RowCacheWriter::write_offsets() {
  flush();
  const io::InputFile rows(temporary_);
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < rows_; ++i) {
    write(&offset, sizeof(offset));
    std::int32_t sizes[2];
    rows.read(static_cast<std::uint64_t>(offset), sizes, sizeof(sizes));
    offset += 8 + 4 * (2 * std::int64_t{sizes[0]} + sizes[1]);
  }
}

void RowCacheWriter::finish(const std::vector<std::string>& notes) {
  std::string text;
  for (const auto& note : notes) text += note + "\n";
  const std::int64_t padding = (8 - written_ % 8) % 8, zero = 0;
  write(&zero, static_cast<std::size_t>(padding));
  Tail tail{};
  tail.rows = rows_;
  tail.total_tokens = total_tokens_;
  tail.offsets_at = written_;
  tail.notes_at = written_ + tail.rows * 8;
  tail.notes_bytes = static_cast<std::int64_t>(text.size());
  tail.magic = kMagic;
  write_offsets();
  write(text.data(), text.size());
  write(&tail, sizeof(tail));
  flush();
  if (::fsync(::fileno(file_)) != 0) fail(temporary_, "write");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "name");
  std::fclose(std::exchange(file_, nullptr));
}

}  // namespace tessera::data
