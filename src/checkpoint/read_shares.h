#pragma once
// Who reads which bytes of a checkpoint, and who sums them: each byte by exactly one rank, and by no rank that does not
// need it where another does.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::checkpoint {

/// Bytes [begin, end) of a file, by its place in a list.
struct ByteRange {
  std::size_t file = 0;
  std::uint64_t begin = 0, end = 0;

  bool operator==(const ByteRange&) const = default;
};

/// What one rank reads.
struct ReadShare {
  ByteRange range;
  bool sums = false;   // for the file's checksum
  bool alone = false;  // no other rank reads it
};

/// needed: for each rank what it takes values from, by file and begin, without overlaps. The same everywhere, so that
/// ranks need not talk. What several need, the first of them sums; gaps go to who needs most of the file; files that
/// nobody needs are spread so that all ranks read equally much. By file and begin.
std::vector<ReadShare> share_reading(const std::vector<std::uint64_t>& file_bytes,
                                     const std::vector<std::vector<ByteRange>>& needed, int rank);

/// Appends, or extends the last one.
void append_range(std::vector<ByteRange>& ranges, const ByteRange& next);

}  // namespace tessera::checkpoint
