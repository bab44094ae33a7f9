#include "base/open_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode)                    ? "a folder"
         : S_ISFIFO(mode)                 ? "a named pipe"
         : S_ISSOCK(mode)                 ? "a socket"
         : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                          : "something else";
}

[[noreturn]] void refuse(const std::string& path, mode_t mode, OpenFile::Takes takes) {
  throw DataError(
      fmt::format("cannot read '{}': expected a file{}, found {}{}", path,
                  takes == OpenFile::Takes::kPipes ? " or a pipe" : "", kind_of(mode),
                  S_ISFIFO(mode) ? ". It can be read only once: write what it gives into a file, and name that" : ""),
      path);
}

[[noreturn]] void refuse_dangling(const std::string& path) {
  std::error_code code;
  throw DataError(fmt::format("cannot read '{}': it is a link to '{}', which does not exist. Is the download complete?",
                              path, fs::read_symlink(path, code).string()),
                  path);
}

[[noreturn]] void cannot_read(const std::string& path, int error) {
  std::error_code code;
  if (error == ENOENT && fs::is_symlink(path, code)) refuse_dangling(path);
  throw DataError(fmt::format("cannot read '{}': {}", path, std::strerror(error)), path);
}

/// What a clone without Git LFS has in place of a large file.
bool is_lfs_pointer(int descriptor, off_t bytes) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  constexpr off_t kMost = 1024;  // of a pointer, by its specification
  std::array<char, kBegin.size()> found{};
  return bytes > static_cast<off_t>(found.size()) && bytes < kMost &&
         ::pread(descriptor, found.data(), found.size(), 0) == static_cast<ssize_t>(found.size()) &&
         std::string_view(found.data(), found.size()) == kBegin;
}

}  // namespace

OpenFile::OpenFile(const std::string& path, Takes takes) {
  struct stat info{};
  // Sockets cannot be opened, and opening a device may do something: they are refused by their names alone.
  if (::stat(path.c_str(), &info) != 0) cannot_read(path, errno);
  const auto is_taken = [&] {
    return S_ISREG(info.st_mode) || (takes == Takes::kPipes && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)));
  };
  if (!is_taken()) refuse(path, info.st_mode, takes);
  // Between the two calls a pipe may come to have the name, and the opening of one waits for who writes to it.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | (takes == Takes::kRegular ? O_NONBLOCK : 0));
  if (descriptor_ < 0) cannot_read(path, errno);
  if (::fstat(descriptor_, &info) != 0 || !is_taken()) {
    ::close(std::exchange(descriptor_, -1));
    refuse(path, info.st_mode, takes);
  }
  if (!S_ISREG(info.st_mode)) return;
  size_bytes_ = static_cast<std::uint64_t>(info.st_size);
  if (is_lfs_pointer(descriptor_, info.st_size)) {
    ::close(std::exchange(descriptor_, -1));
    throw DataError(
        fmt::format("'{}' is a pointer of Git LFS, not the file itself; 'git lfs pull' in its folder fetches it", path),
        path);
  }
}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int OpenFile::open_again(int flags) const {
  return ::open(fmt::format("/proc/self/fd/{}", descriptor_).c_str(), O_RDONLY | O_CLOEXEC | flags);
}

bool is_there(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) cannot_read(path, errno);
  if (::lstat(path.c_str(), &info) == 0) refuse_dangling(path);
  return false;
}

}  // namespace tessera
