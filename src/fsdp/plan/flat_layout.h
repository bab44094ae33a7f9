#pragma once
// Where a unit's parameters lie in its flat segments. Pure arithmetic: no memory, no communication.
//
// Parameters of one stored dtype that are all trainable, or all frozen, share a segment, but for those that are to be
// alone. Each starts at a multiple of 64 bytes (kernels read them in place) and the segment is padded so that its
// world_size equal slices do too; rank r owns slice r. Fields of packed matrices (tessera/tensor/codec.h) are bytes:
// they share segments of bytes, in which entries and slices start at multiples of their blocks too.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::fsdp {

struct ParameterSpec {
  std::string name;  // fully qualified
  std::vector<std::int64_t> shape;
  at::ScalarType stored = at::kFloat;   // of the master
  at::ScalarType compute = at::kFloat;  // what the module sees
  bool trainable = false;
  bool kept = false;    // frozen, and saved as it was read
  bool mapped = false;  // a view of a file: in no segment
  bool alone = false;   // in a segment of its own
  /// A field of a packed matrix: its bytes are kept as they are, and slices end at multiples of this. 0: a dense
  /// tensor.
  std::int64_t block_bytes = 0;

  bool packed() const { return block_bytes > 0; }
  std::int64_t numel() const;
  /// Elements of the segment that it takes: its own, or bytes.
  std::int64_t segment_numel() const;
  /// Frozen values are never written again, so they are kept in the compute dtype alone where nobody saves them.
  at::ScalarType shard_dtype() const { return trainable || kept ? stored : compute; }
};

/// A parameter's place: elements [offset, offset + numel) of the segment; of a packed one bytes.
struct Entry {
  int parameter = 0;  // index among the unit's parameters
  std::int64_t offset = 0, numel = 0;
};

struct Segment {
  at::ScalarType stored = at::kFloat, compute = at::kFloat;
  bool trainable = false;
  bool kept = false;                        // as its parameters
  bool alone = false;                       // of one parameter, by its wish
  std::int64_t align_bytes = 64;            // of entries and slices
  std::int64_t slice_numel = 0, numel = 0;  // numel == world_size * slice_numel
  std::vector<Entry> entries;               // ascending offsets

  at::ScalarType shard_dtype() const { return trainable || kept ? stored : compute; }
};

/// A range of one parameter inside one slice, in elements of the segment.
struct Piece {
  int parameter = 0;
  std::int64_t in_parameter = 0, in_slice = 0, numel = 0;
};

std::vector<Segment> make_segments(const std::vector<ParameterSpec>& parameters, int world_size);

/// What lies in rank's slice, ascending.
std::vector<Piece> pieces_of_slice(const Segment& segment, int rank);

/// The elements [begin, end) that belong to no parameter.
std::vector<std::pair<std::int64_t, std::int64_t>> gaps(const Segment& segment);

}  // namespace tessera::fsdp
