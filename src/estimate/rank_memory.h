#pragma once
// The bytes that a rank of a CPU host holds at its peak, by formula: docs/guides/sharding.md, "What a rank then holds".
#include <cstdint>
#include <string>
#include <vector>

#include "config/accelerate.h"
#include "estimate/activations.h"

namespace tessera::estimate {

struct SizedParameter {
  std::string name;
  std::int64_t numel = 0;
  bool trainable = true;
  bool stored_as_computed = true;  // its file has the dtype of the computation: it is mapped, not read and cast
  std::int64_t packed_bytes =
      0;  // of a frozen matrix of few bits; 0: it is dense. stored_as_computed: its file has it so
  std::int64_t state_bytes = -1;                           // of the optimizer, all ranks together; -1: AdamW's
  std::int64_t own_state_bytes = 0, own_update_bytes = 0;  // of it on every rank, always and while it steps
};

/// Sums over a model whose blocks are units, in elements. "Root" is what lies in no block.
struct ModelSizes {
  std::int64_t trainable = 0, frozen_mapped = 0, frozen_cast = 0;
  std::int64_t root_whole = 0, largest_unit_whole = 0;  // frozen ones included
  std::int64_t largest_unit_trainable = 0, root_trainable = 0;
  std::int64_t encoder_trainable = 0;  // of blocks named "encoder."
  std::int64_t looked_up = 0;          // of the root, trainable: tables of which a step reads some rows
  std::int64_t largest_leaf = 0;       // trainable, in one flat tensor
  // Gradients on their way (fsdp/grads/gradient_slots.h): the ring, and what has a slot of its own, the root's small
  // parameters and a table that may be tied.
  std::int64_t ring = 0, root_rest = 0, tables_apart = 0;
  std::int64_t packed = 0;                                      // elements
  std::int64_t packed_mapped_bytes = 0, packed_read_bytes = 0;  // in place in a file, or packed while they are read
  std::int64_t largest_unit_packed_bytes = 0;
  std::int64_t state_bytes = 0;  // of the optimizer
  std::int64_t own_state_bytes = 0, own_update_bytes = 0;
  std::int64_t total() const { return trainable + frozen_mapped + frozen_cast + packed; }
};

/// The block "...layers.7" that a parameter lies in; empty for those of the root.
std::string unit_of(const std::string& parameter);

/// In the order of registration.
ModelSizes sizes_of(const std::vector<SizedParameter>& parameters);

struct RankJob {
  /// Hybrid ones: sharded among the ranks of a host.
  config::ShardingStrategy strategy = config::ShardingStrategy::kFullShard;
  int ranks = 1;               // of one host
  bool low_precision = false;  // bf16 or fp16 computation, fp32 masters
  bool whole_masters = false;  // fp16: they are not kept in halves
  bool on_disk = false;        // fsdp_offload_folder
  bool for_device = false;     // a GPU computes with copies of what is here
  int hosts = 1;
  ActivationShape activations = {}, encoder = {};
  AdapterActivations adapters = {}, encoder_adapters = {};  // of this batch
  BatchShape batch = {};
};

struct MemoryPart {
  const char* what;
  std::int64_t bytes;
};

/// What a rank holds at its worst moment, part by part.
struct RankPlan {
  std::vector<MemoryPart> parts;  // those of no bytes are left out
  const char* phase = "";         // of a step, in which that is: "forward", "backward", "update"
  std::int64_t program = 0;       // a rank's process before there is a model
  std::int64_t total() const;     // of the parts
  std::int64_t held() const { return total() + program; }
};

/// Of a process before there is a model: libtorch's pages that it touches, and what oneDNN keeps. Ranks of a host share
/// those of files, and if `tessera launch` has forked them (launch/fork_server.h) most of the others.
std::int64_t program_bytes(std::int64_t ranks_of_host, bool forked);

/// After the optimizer's first step; parameters in the shared or mapped form, where they are sharded over several hosts
/// in the copy form. Without the program itself.
RankPlan plan_rank(const ModelSizes& sizes, const RankJob& job);
/// Its total.
std::int64_t rank_bytes(const ModelSizes& sizes, const RankJob& job);

}  // namespace tessera::estimate
