#pragma once
// Many reads of files in one pass: each byte is put into its place and summed while it is in the processor's cache, and
// the next ones are on their way meanwhile.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "io/read_ahead.h"

namespace tessera::io {

struct FileRead {
  Stretch from;
  at::ScalarType stored = at::kByte;  // what lies there
  at::Tensor out = {};                // 1-D, contiguous, on the CPU; takes all of it, converted. Undefined: only summed
  int sum = kNotSummed;               // which checksum goes on with these bytes

  static constexpr int kNotSummed = -1;
};

/// In their order, which should be that of the disk. Returns `sums` CRC-32C checksums. DataError names the file that is
/// shorter, or cannot be read.
std::vector<std::uint32_t> read_files(const std::vector<FileRead>& reads, std::size_t sums = 0);

}  // namespace tessera::io
