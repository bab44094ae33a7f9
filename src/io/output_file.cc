#include "io/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/crc32c.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

[[noreturn]] void fail_writing(const std::string& path, const char* what) {
  const char* remedy = errno == ENOSPC || errno == EDQUOT ? ". Free some space or choose another output folder" : "";
  throw CheckpointError(fmt::format("{}: {}: {}{}", path, what, std::strerror(errno), remedy), path);
}

}  // namespace

OutputFile::OutputFile(const std::string& path, Writers writers)
    : path_(path), temporary_(writers == Writers::kOne ? fmt::format("{}.tmp-{}", path, ::getpid()) : path) {
  const int fresh = writers == Writers::kOne ? O_TRUNC : 0;
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | fresh, 0666);
  if (descriptor_ < 0) fail_writing(temporary_, "cannot be created");
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (temporary_ != path_) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::uint64_t offset, const void* data, std::size_t bytes) {
  constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // its checksum is taken while it is in the cache
  const auto* from = static_cast<const char*>(data);
  Part& part = parts_[offset];
  while (bytes > 0) {
    const auto wrote =
        ::pwrite(descriptor_, from, std::min(bytes, kPieceBytes), static_cast<off_t>(offset + part.bytes));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail_writing(temporary_, "cannot be written");
    const auto count = static_cast<std::size_t>(wrote);
    part.crc32c = crc32c(from, count, part.crc32c);
    part.bytes += count;
    from += count;
    bytes -= count;
  }
}

void OutputFile::resize(std::uint64_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) fail_writing(temporary_, "cannot be resized");
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
  if (::fsync(descriptor_) != 0) fail_writing(temporary_, "cannot be flushed to the disk");
  ::close(descriptor_);
  descriptor_ = -1;
  return joined_parts();
}

WrittenFile OutputFile::commit() {
  TESSERA_CHECK(descriptor_ >= 0, "commit() was called before");
  if (::fsync(descriptor_) != 0) fail_writing(temporary_, "cannot be flushed to the disk");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_writing(path_, "cannot be renamed into place");
  ::close(descriptor_);
  descriptor_ = -1;
  // The rename is durable only when the folder is on the disk too; file systems that refuse this keep their own
  // promise.
  const auto folder = std::filesystem::absolute(path_).parent_path();
  const int d = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (d >= 0) {
    ::fsync(d);
    ::close(d);
  }
  WrittenFile out{path_};
  for (const auto& part : joined_parts()) {
    out.crc32c = crc32c_combine(out.crc32c, part.crc32c, part.bytes);
    out.bytes += static_cast<std::int64_t>(part.bytes);
  }
  return out;
}

}  // namespace tessera::io
