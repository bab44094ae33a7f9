#pragma once
// A file that is read by ranges, through or past the page cache, and mapped whole when somebody asks for its bytes in
// place.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/open_file.h"

namespace tessera::io {

class InputFile {
 public:
  /// DataError when the path is not a readable regular file.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size_bytes() const { return file_.size_bytes(); }
  int descriptor() const { return file_.descriptor(); }

  /// Exactly `bytes` bytes from `offset`; DataError when the file ends before. Thread-safe, moves no file position.
  void read(std::uint64_t offset, void* out, std::size_t bytes) const;
  std::string read_string(std::uint64_t offset, std::size_t bytes) const;

  /// What O_DIRECT wants offsets, lengths and addresses to be multiples of.
  static constexpr std::size_t kBlockBytes = 4096;
  /// Bytes from `offset` on, straight from the disk: as many as there are up to `bytes`; offset, bytes and out are
  /// multiples of kBlockBytes. False, and nothing read, where the file system cannot. Thread-safe.
  bool read_past_cache(std::uint64_t offset, std::byte* out, std::size_t bytes) const;
  /// True when most of these bytes are in the page cache, or nobody may tell. Thread-safe.
  bool is_cached(std::uint64_t offset, std::size_t bytes) const;
  /// Asks the disk for these bytes, into the page cache, and returns at once.
  void prefetch(std::uint64_t offset, std::size_t bytes) const;

  /// The whole file, copy-on-write (a stray write cannot reach the file). Made by the first call; it lives on after
  /// this object.
  std::shared_ptr<std::byte> map() const;

 private:
  static constexpr int kNotOpened = -2;
  int direct() const;
  std::string path_;
  OpenFile file_;
  mutable std::atomic<int> direct_ = kNotOpened;  // the same file past the page cache, opened by the first call
  mutable std::mutex mutex_;
  mutable std::shared_ptr<std::byte> mapping_;
};

}  // namespace tessera::io
