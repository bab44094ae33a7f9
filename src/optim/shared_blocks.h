#pragma once
// Blocks of which several slices hold parts, on one rank or on several: they agree on the largest magnitude.
#include <array>
#include <cstdint>
#include <vector>

#include "optim/state_codec.h"
#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/update.h"

namespace tessera::optim {

/// The elements of a slice that lie in one block, counted from the parameter's first; blocks by their number.
struct BlockRange {
  std::int64_t block = 0, begin = 0, end = 0;
  std::int64_t numel() const { return end - begin; }
};

/// A parameter's blocks of so many elements.
struct Blocks {
  std::int64_t numel = kLargestStateBlock;
  BlockRange range_in(const ParameterSlice& slice, std::int64_t block) const;
  /// The first block that the slice has elements of, and the one behind the last.
  std::int64_t first(const ParameterSlice& slice) const { return slice.offset / numel; }
  std::int64_t end(const ParameterSlice& slice) const;
};

/// A slice's part of a block that it does not hold whole.
struct SharedPart {
  std::size_t slice = 0;
  BlockRange range;
  std::size_t slot = 0;  // of the block, alike on every rank
  bool updated = false;  // in this step
  /// Where two codes share a byte, its halves may lie in two slices.
  struct SharedByte {
    std::size_t others = 0, own = 0;  // slots of the two elements
  };
  bool shares_first_byte = false, shares_last_byte = false;
  SharedByte before = {}, behind = {};
  /// Of the states, after the update, the other slices' halves of shared bytes around them.
  std::array<std::array<float, kLargestStateBlock + 2>, kMaxStates> values = {};
  float* own_values(std::size_t state) { return values[state].data() + 1; }
  const float* own_values(std::size_t state) const { return values[state].data() + 1; }
};

class SharedBlocks {
 public:
  /// Collective over `group` (null: all slices are here). `packed[i]`: slice i has blocks.
  SharedBlocks(const std::vector<ParameterSlice>& slices, const std::vector<bool>& packed, const StateCodec& codec,
               comm::Communicator* group);

  /// nullptr: the slice holds the block whole.
  SharedPart* find(std::size_t slice, std::int64_t block);
  std::vector<SharedPart>& parts() { return parts_; }

  /// Collective over `group`. max |x| of each block and state, over the parts that were updated; and the parts'
  /// neighbours.
  void agree(comm::Communicator* group);
  float absmax(std::size_t slot, std::size_t state) const { return agreed_[slot * kMaxStates + state]; }

 private:
  std::vector<SharedPart> parts_;  // in the order of the slices
  /// By slot and state: of blocks the largest magnitude, of a shared byte's two halves the value (a slot each).
  std::vector<float> agreed_;
};

}  // namespace tessera::optim
