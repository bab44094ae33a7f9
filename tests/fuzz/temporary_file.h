#pragma once
// The readers take paths; a fuzz target has bytes. Files lie in memory, in a folder of the process with a short path:
// readers ask for their state before each row.
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::fuzz {

/// A folder of this process, for readers that go by a file's name or look beside it.
class Folder {
 public:
  Folder() {
    char name[] = "/dev/shm/fuzz-XXXXXX";
    path_ = ::mkdtemp(name) == nullptr ? "" : name;
    if (path_.empty()) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  /// The path of a file of this name that now holds the text.
  std::string write(const std::string& name, std::string_view text) const {
    const std::string file = path_ + "/" + name;
    const int descriptor = ::open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (::write(descriptor, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
    ::close(descriptor);
    return file;
  }
  void remove(const std::string& name) const { ::unlink((path_ + "/" + name).c_str()); }

 private:
  std::string path_;
};

/// The path of a file of this process in memory that now holds these bytes. It keeps its pages, which are slow to get.
inline const std::string& as_file(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  static const std::string path = folder.write("input", "");
  static const int descriptor = ::open(path.c_str(), O_WRONLY);
  static std::size_t before = 0;
  if (::pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  if (before != size && ::ftruncate(descriptor, static_cast<off_t>(size)) != 0) std::abort();
  before = size;
  return path;
}

/// The text up to the next such byte, which goes with it.
inline std::string_view next_part(std::string_view& text, char end) {
  const auto at = std::min(text.find(end), text.size());
  const auto part = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return part;
}

}  // namespace tessera::fuzz
