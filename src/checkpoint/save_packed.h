#pragma once
// Folders written from models whose linear layers are packed, or shall be: one tensor at a time is dense.
#include <optional>
#include <set>
#include <string>

#include "checkpoint/pretrained.h"

namespace tessera::checkpoint {

/// How linear layers are written.
struct PackedOutput {
  families::Quantization quantization;
  std::set<std::string> layers;  // which
};

struct SavePackedOptions {
  SaveOptions save = {};
  std::optional<AdaptedModule> adapted = {};  // its adapters are merged in, in float32
  std::optional<PackedOutput> packed = {};    // unset: all weights are dense, and config.json says nothing of packing
  Head head = Head::kAsInBase;
};

/// Collective; rank 0 writes. As save_pretrained() and save_merged(), of a model whose layers may be packed: their
/// values are unpacked to float32, a matrix at a time, and rounded to options.save.dtype, which must be set.
void save_packed(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module,
                 const SavePackedOptions& options, const std::string& folder);

/// True of a model with packed layers.
bool has_packed(const fsdp::FullyShardedDataParallel& model);

}  // namespace tessera::checkpoint
