#pragma once
// Moving data through the staging buffers. In round t every rank may fill its stage t and reads the others'; stages are
// small enough to stay in the cache and a rank fills the next ones before it reads this one. All ranks of the group run
// the same rounds at the same point of their sequence of operations.
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/group/group.h"
#include "comm/reduce/reduce_kernels.h"

namespace tessera::comm {

/// The bytes of one rank: how many it sends, and where the part [begin, end) of them goes here (nowhere if out is
/// null).
struct Flow {
  std::int64_t length = 0;
  std::byte* out = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
Flow whole(std::int64_t length, std::byte* out);

/// flows: one for each rank, the lengths equal on all ranks. `own` holds this rank's bytes; they are copied to its own
/// flow's `out` too, unless that is where they are.
void stream(Group& group, const std::byte* own, std::span<const Flow> flows);

/// A slice of a vector, in elements.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// [0, n) in one slice for each of `size` owners; borders are multiples of 64.
std::vector<Slice> equal_slices(std::int64_t n, int size);

struct Elements {
  void* data = nullptr;
  c10::ScalarType type = c10::ScalarType::Undefined;
};

/// out[0, count) = reduction over ranks of their `in` at this rank's slice, after what reduction.before has for that
/// slice. Slices: one for each rank, equal on all.
void reduce_slices(Group& group, Elements out, Elements in, std::span<const Slice> slices, const Reduction& reduction);

/// data[0, n) = reduction over ranks, computed by every rank: for short vectors and for two ranks.
void reduce_whole(Group& group, Elements data, std::int64_t n, const Reduction& reduction);

}  // namespace tessera::comm
