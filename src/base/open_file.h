#pragma once
// The one way to open a file for reading: a path that somebody gave may lead to anything.
#include <cstdint>
#include <string>

namespace tessera {

/// Open for reading as long as this lives.
class OpenFile {
 public:
  enum class Takes {
    kRegular,  // what has a size and is read at any place, by every rank; opening it never waits
    kPipes,    // also what one process reads once, from the begin to the end: named pipes, terminals
  };
  /// DataError that names the path and what is there instead: nothing, a link that leads nowhere, a folder, a socket,
  /// a pointer of Git LFS ...
  explicit OpenFile(const std::string& path, Takes takes = Takes::kRegular);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::uint64_t size_bytes() const { return size_bytes_; }  // 0 of a pipe
  /// A second descriptor of this file, whatever has its name by now, with flags such as O_DIRECT, which the caller
  /// closes; -1 where the system has none.
  int open_again(int flags) const;

 private:
  int descriptor_ = -1;
  std::uint64_t size_bytes_ = 0;
};

/// Whether an optional file or folder is there. DataError for a link that leads nowhere: what it should lead to is
/// missing, which is not what the file's absence says.
bool is_there(const std::string& path);

}  // namespace tessera
