#pragma once
// What a run needs to go on as if it had never stopped, sharded: in `folder`, a file for each rank with its slices of
// the trainable parameters (masters) and of the optimizer's state, then state.json with what is common. Any world size
// reads it: a slice is (name, offset), so reading at another number of ranks is interval arithmetic.
#include <memory>
#include <string>

#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/optimizer.h"

namespace tessera::checkpoint {

/// Collective. The folder is new: a reader takes it only when state.json, written last, is there and every file has its
/// size. CheckpointError on every rank when one of them cannot write.
void save_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer, const std::string& folder);

/// Collective. With the same world size the random streams of all ranks go on where they were. optimizer: null reads
/// the parameters only. CheckpointError names the file, or the parameter of which a part is missing.
void load_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer* optimizer, const std::string& folder);

/// Where a checkpoint folder keeps it.
std::string training_state_folder(const std::string& checkpoint);

/// True when save_training_state() finished there and every file has the size it had then.
bool has_training_state(const std::string& folder);

}  // namespace tessera::checkpoint
