#pragma once
// A file that is written in parts, in any order, under a temporary name, and gets its name when it is on disk.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "io/tensor_source.h"

namespace tessera::io {

class OutputFile {
 public:
  /// CheckpointError names the path and the reason, here and below.
  explicit OutputFile(const std::string& path);
  /// Without commit() nothing is left behind.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::uint64_t offset, const void* data, std::size_t bytes);
  /// Flushes and renames. The checksum is that of the parts in their order: they must not overlap nor leave gaps.
  WrittenFile commit();

 private:
  struct Part {
    std::uint64_t bytes = 0;
    std::uint32_t crc32c = 0;
  };
  std::string path_, temporary_;
  int descriptor_ = -1;
  std::map<std::uint64_t, Part> parts_;  // by offset
};

}  // namespace tessera::io
