#pragma once
// A file that is written in parts, in any order, under a temporary name, and gets its name when it is on disk. Where
// the file system can, bytes go to the disk past the page cache (O_DIRECT): a checkpoint is not read again soon, and
// filling the cache with it costs more time than the disk does. Parts that follow each other are joined into large
// writes.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/direct_memory.h"
#include "tessera/io/tensor_source.h"

namespace tessera::io {

/// Bytes [offset, offset + bytes) of a file.
struct WrittenPart {
  std::uint64_t offset = 0, bytes = 0;
  std::uint32_t crc32c = 0;
};

class OutputFile {
 public:
  /// kOne: under a temporary name until commit(). kSeveral: under `path` itself, made where it is missing; several
  /// processes of a host write their parts of it, each calls flush().
  enum class Writers { kOne, kSeveral };
  /// CheckpointError names the path and the reason, here and below.
  explicit OutputFile(const std::string& path, Writers writers = Writers::kOne);
  /// Of kOne nothing is left behind without commit().
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::uint64_t offset, const void* data, std::size_t bytes);
  /// Flushes and renames. The checksum is that of the parts in their order: they must not overlap nor leave gaps.
  WrittenFile commit();
  /// Cuts or extends the file, and takes the room on the disk; what is never written is zero.
  void resize(std::uint64_t bytes);
  /// What was written here is on the disk: in order, neighbours joined. Ends the writing.
  std::vector<WrittenPart> flush();

 private:
  struct Part {
    std::uint64_t bytes = 0;
    std::uint32_t crc32c = 0;
  };
  std::vector<WrittenPart> joined_parts() const;
  std::size_t stage(std::uint64_t offset, const char* data, std::size_t bytes);
  void drain();
  void write_to(int descriptor, std::uint64_t offset, const std::byte* data, std::size_t bytes);
  void close_all();
  std::string path_, temporary_;
  int descriptor_ = -1, direct_ = -1;  // the same file; direct_: past the page cache, -1: not here
  std::optional<DirectMemory> stage_;  // holds staged_bytes_ from staged_at_ of the file on,
  std::uint64_t staged_at_ = 0;        // behind staged_at_ % kBlockBytes bytes that are not ours
  std::size_t staged_bytes_ = 0;
  std::map<std::uint64_t, Part> parts_;  // by offset
};

}  // namespace tessera::io
