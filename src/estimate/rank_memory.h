#pragma once
// The bytes that a rank of a CPU host holds at its peak, by formula: docs/guides/sharding.md, "What a rank then holds".
#include <cstdint>
#include <string>
#include <vector>

#include "config/accelerate.h"

namespace tessera::estimate {

struct SizedParameter {
  std::string name;
  std::int64_t numel = 0;
  bool trainable = true;
  bool stored_as_computed = true;  // its file has the dtype of the computation: it is mapped, not read and cast
};

/// Sums over a model whose blocks are units, in elements. "Root" is what lies in no block.
struct ModelSizes {
  std::int64_t trainable = 0, frozen_mapped = 0, frozen_cast = 0;
  std::int64_t root_whole = 0, largest_unit_whole = 0;  // frozen ones included
  std::int64_t largest_unit_trainable = 0;
  std::int64_t looked_up = 0;     // of the root, trainable: tables of which a step reads some rows
  std::int64_t largest_leaf = 0;  // trainable, in one flat tensor
  // Gradients on their way (fsdp/grads/gradient_slots.h): the ring, and what has a slot of its own, the root's small
  // parameters and a table that may be tied.
  std::int64_t ring = 0, root_rest = 0, tables_apart = 0;
  std::int64_t total() const { return trainable + frozen_mapped + frozen_cast; }
};

/// The block "...layers.7" that a parameter lies in; empty for those of the root.
std::string unit_of(const std::string& parameter);

/// In the order of registration.
ModelSizes sizes_of(const std::vector<SizedParameter>& parameters);

struct RankJob {
  config::ShardingStrategy strategy = config::ShardingStrategy::kFullShard;  // the hybrid ones are not known here
  int ranks = 1;                                                             // of one host
  bool low_precision = false;                                                // bf16 or fp16 computation, fp32 masters
  bool whole_masters = false;                                                // fp16: they are not kept in halves
  bool on_disk = false;                                                      // fsdp_offload_folder
};

/// For AdamW after its first step, parameters in the shared or mapped form. The program itself (libraries) and the
/// activations come on top.
std::int64_t rank_bytes(const ModelSizes& sizes, const RankJob& job);

}  // namespace tessera::estimate
