#pragma once
// Blocks of which several slices hold parts, on one rank or on several: they agree on the largest magnitude.
#include <array>
#include <cstdint>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/update.h"

namespace tessera::optim {

constexpr std::int64_t kStateBlock = 256;  // elements of a parameter

/// The elements of a slice that lie in one block, counted from the parameter's first.
struct BlockRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t block() const { return begin / kStateBlock; }
};
BlockRange range_in_block(const ParameterSlice& slice, std::int64_t block);
/// The first block that the slice has elements of, and the one behind the last.
std::int64_t first_block(const ParameterSlice& slice);
std::int64_t end_block(const ParameterSlice& slice);

/// A slice's part of a block that it does not hold whole.
struct SharedPart {
  std::size_t slice = 0;
  BlockRange range;
  std::size_t slot = 0;                                           // of the block, alike on every rank
  bool updated = false;                                           // in this step
  std::array<std::array<float, kStateBlock>, kMaxStates> values;  // of the states, after the update
};

class SharedBlocks {
 public:
  /// Collective over `group` (null: all slices are here). `packed[i]`: slice i has blocks.
  SharedBlocks(const std::vector<ParameterSlice>& slices, const std::vector<bool>& packed, comm::Communicator* group);

  /// nullptr: the slice holds the block whole.
  SharedPart* find(std::size_t slice, std::int64_t block);
  std::vector<SharedPart>& parts() { return parts_; }

  /// Collective over `group`. max |x| of each block and state, over the parts that were updated.
  void agree(comm::Communicator* group);
  float absmax(std::size_t slot, std::size_t state) const { return absmax_[slot * kMaxStates + state]; }

 private:
  std::vector<SharedPart> parts_;  // in the order of the slices
  std::vector<float> absmax_;      // by slot and state
};

}  // namespace tessera::optim
