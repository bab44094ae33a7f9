#pragma once
// A file that is read by ranges, and mapped whole when somebody asks for its bytes in place.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace tessera::io {

class InputFile {
 public:
  /// DataError when the path is not a readable regular file.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const { return size_bytes_; }

  /// Exactly `bytes` bytes from `offset`; DataError when the file ends before. Thread-safe, moves no file position.
  void read(std::uint64_t offset, void* out, std::size_t bytes) const;
  std::string read_string(std::uint64_t offset, std::size_t bytes) const;

  /// The whole file, copy-on-write (a stray write cannot reach the file). Made by the first call; it lives on after
  /// this object.
  std::shared_ptr<std::byte> map() const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_bytes_ = 0;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<std::byte> mapping_;
};

}  // namespace tessera::io
