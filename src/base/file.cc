#include "base/file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/folder.h"
#include "base/open_file.h"
#include "base/temporary_file.h"
#include "base/utf8.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string reason(int error) {
  return std::strerror(error);
}

[[noreturn]] void cannot_write(const std::string& path, int error) {
  const char* remedy = error == ENOSPC || error == EDQUOT ? "Free some space or choose another output folder."
                       : error == EACCES || error == EPERM || error == EROFS
                           ? "Change its permissions or choose another output folder."
                           : "Choose another output folder.";
  throw CheckpointError(fmt::format("cannot write '{}': {}. {}", path, reason(error), remedy), path);
}

int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

/// Writes a file into `there` and removes it; `folder` is what an error names.
void probe(const fs::path& there, const std::string& folder) {
  const TemporaryFile file = open_temporary((there / ".tessera_probe").string());
  if (file.descriptor.get() < 0) cannot_write(folder, errno);
  ::unlink(file.name.c_str());
}

}  // namespace

std::string read_file(const std::string& path, std::int64_t max_bytes) {
  const OpenFile file(path);
  if (file.size_bytes() > static_cast<std::uint64_t>(max_bytes)) {
    throw DataError(fmt::format("'{}' has {} bytes; at most {} are expected here", path, file.size_bytes(), max_bytes),
                    path);
  }
  std::string bytes(static_cast<std::size_t>(file.size_bytes()), '\0');
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n = ::read(file.descriptor(), bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw DataError(fmt::format("cannot read '{}': {}", path, reason(errno)), path);
    if (n == 0) break;  // it shrank since it was opened
    at += static_cast<std::size_t>(n);
  }
  bytes.resize(at);
  return bytes;
}

std::string read_text_file(const std::string& path) {
  auto text = read_file(path);
  if (const auto at = find_malformed_utf8(text))
    throw DataError(fmt::format("{}: expected text in UTF-8, found the byte 0x{:02x} at byte {}. Save it as UTF-8.",
                                path, static_cast<unsigned char>(text[*at]), *at),
                    path);
  return text;
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  TemporaryFile file = open_temporary(path);
  const int fd = file.descriptor.release();
  if (fd < 0) cannot_write(path, errno);
  int error = write_all(fd, bytes);
  if (error == 0 && ::fsync(fd) != 0) error = errno;
  if (error == 0 && ::rename(file.name.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(file.name.c_str());
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error != 0) cannot_write(path, error);
  flush_folder(parent_folder(path));
}

void ensure_writable_folder(const std::string& folder, std::int64_t needed_bytes) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) cannot_write(folder, code.value());
  probe(folder, folder);
  const fs::space_info space = fs::space(folder, code);
  if (!code && needed_bytes > 0 && space.available < static_cast<std::uintmax_t>(needed_bytes)) {
    throw CheckpointError(
        fmt::format("'{}' needs {} bytes of free space and its disk has {}. Free some space or choose "
                    "another output folder.",
                    folder, needed_bytes, space.available),
        folder);
  }
}

void require_writable(const std::string& folder) {
  std::error_code code;
  fs::path there = fs::absolute(folder, code);
  while (!code && !fs::exists(there, code) && !code && there.has_relative_path()) there = there.parent_path();
  if (code) cannot_write(folder, code.value());
  probe(there, folder);
}

}  // namespace tessera
