#include "io/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/folder.h"
#include "base/temporary_file.h"
#include "io/input_file.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

constexpr std::size_t kBlockBytes = InputFile::kBlockBytes;
constexpr std::size_t kStageBytes = std::size_t{4} << 20;  // of one write past the page cache
constexpr std::size_t kWritePieceBytes = std::size_t{1}
                                         << 18;  // copied and summed while it is in the processor's cache

[[noreturn]] void fail_writing(const std::string& path, const char* what) {
  const char* remedy = errno == ENOSPC || errno == EDQUOT ? ". Free some space or choose another output folder" : "";
  throw CheckpointError(fmt::format("{}: {}: {}{}", path, what, std::strerror(errno), remedy), path);
}

}  // namespace

OutputFile::OutputFile(const std::string& path, Writers writers) : path_(path), temporary_(path) {
  if (writers == Writers::kOne) {
    TemporaryFile file = open_temporary(path);
    temporary_ = file.name;
    descriptor_ = file.descriptor.release();
  } else {
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  }
  if (descriptor_ < 0) fail_writing(temporary_, "cannot be created");
  direct_ = ::open(temporary_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  close_all();
  if (temporary_ != path_) ::unlink(temporary_.c_str());
}

void OutputFile::close_all() {
  ::close(std::exchange(descriptor_, -1));
  if (direct_ >= 0) ::close(std::exchange(direct_, -1));
}

void OutputFile::write(std::uint64_t offset, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  Part& part = parts_[offset];
  while (bytes > 0) {
    std::size_t count = std::min(bytes, kWritePieceBytes);
    if (direct_ >= 0)
      count = stage(offset + part.bytes, from, count);
    else
      write_to(descriptor_, offset + part.bytes, reinterpret_cast<const std::byte*>(from), count);
    part.crc32c = crc32c(from, count, part.crc32c);  // while it is in the cache
    part.bytes += count;
    from += count;
    bytes -= count;
  }
}

/// Takes at most `bytes`; returns how many.
std::size_t OutputFile::stage(std::uint64_t offset, const char* data, std::size_t bytes) {
  if (!stage_) stage_.emplace(kStageBytes);
  if (staged_bytes_ > 0 && offset != staged_at_ + staged_bytes_) drain();
  if (staged_bytes_ == 0) staged_at_ = offset;
  const std::size_t at = staged_at_ % kBlockBytes + staged_bytes_, count = std::min(bytes, kStageBytes - at);
  std::memcpy(stage_->data() + at, data, count);
  staged_bytes_ += count;
  if (at + count == kStageBytes) drain();
  return count;
}

/// Whole blocks go past the page cache; the bytes before and behind them share their blocks with others.
void OutputFile::drain() {
  const std::uint64_t begin = staged_at_, end = begin + std::exchange(staged_bytes_, 0);
  const std::byte* data = stage_->data() + begin % kBlockBytes;
  const std::uint64_t first = (begin + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const std::uint64_t last = end / kBlockBytes * kBlockBytes;
  if (direct_ < 0 || first >= last) return write_to(descriptor_, begin, data, end - begin);
  write_to(descriptor_, begin, data, first - begin);
  write_to(direct_, first, data + (first - begin), last - first);
  write_to(descriptor_, last, data + (last - begin), end - last);
}

void OutputFile::write_to(int descriptor, std::uint64_t offset, const std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    const auto wrote = ::pwrite(descriptor, data, bytes, static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EINVAL && descriptor != descriptor_) {  // not on this file system, or not so
      ::close(std::exchange(direct_, -1));
      descriptor = descriptor_;
      continue;
    }
    if (wrote < 0) fail_writing(temporary_, "cannot be written");
    offset += static_cast<std::uint64_t>(wrote);
    data += wrote;
    bytes -= static_cast<std::size_t>(wrote);
  }
}

void OutputFile::resize(std::uint64_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) fail_writing(temporary_, "cannot be resized");
  if (direct_ < 0 || bytes == 0) return;
  const int failed = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes));
  if (failed != 0 && errno != EOPNOTSUPP) fail_writing(temporary_, "cannot be written");
}

std::vector<WrittenPart> OutputFile::joined_parts() const {
  std::vector<WrittenPart> out;
  for (const auto& [offset, part] : parts_) {
    if (part.bytes == 0) continue;
    if (out.empty() || out.back().offset + out.back().bytes != offset) {
      out.push_back({offset, part.bytes, part.crc32c});
      continue;
    }
    out.back().crc32c = crc32c_combine(out.back().crc32c, part.crc32c, part.bytes);
    out.back().bytes += part.bytes;
  }
  return out;
}

std::vector<WrittenPart> OutputFile::flush() {
  if (staged_bytes_ > 0) drain();
  if (::fsync(descriptor_) != 0) fail_writing(temporary_, "cannot be flushed to the disk");
  close_all();
  return joined_parts();
}

WrittenFile OutputFile::commit() {
  TESSERA_CHECK(descriptor_ >= 0, "commit() was called before");
  if (staged_bytes_ > 0) drain();
  if (::fsync(descriptor_) != 0) fail_writing(temporary_, "cannot be flushed to the disk");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_writing(path_, "cannot be renamed into place");
  close_all();
  flush_folder(parent_folder(path_));
  WrittenFile out{path_};
  for (const auto& part : joined_parts()) {
    out.crc32c = crc32c_combine(out.crc32c, part.crc32c, part.bytes);
    out.bytes += static_cast<std::int64_t>(part.bytes);
  }
  return out;
}

}  // namespace tessera::io
