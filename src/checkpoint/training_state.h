#pragma once
// What a run needs to go on as if it had never stopped, sharded: in `folder`, a file for each rank with its slices of
// the trainable parameters (masters) and of the optimizer's state, then state.json with what is common. Any world size
// reads it: a slice is (name, offset), so reading at another number of ranks is interval arithmetic.
#include <memory>
#include <string>

#include "checkpoint/save_queue.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/optimizer.h"

namespace tessera::checkpoint {

/// Collective. A reader takes the folder only when state.json and every rank's file are there and whole.
/// CheckpointError on every rank when one of them cannot write.
void save_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer, const std::string& folder);

/// Collective. The same through a queue: its jobs copy the slices first (SaveQueue::wait_copied() says when the
/// optimizer may go on), then write.
void push_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer, const std::string& folder,
                         SaveQueue& queue);

/// Collective. With the same world size the random streams of all ranks go on where they were. optimizer: null reads
/// the parameters only. CheckpointError names the file, or the parameter of which a part is missing.
void load_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer* optimizer, const std::string& folder);

/// Where a checkpoint folder keeps it.
std::string training_state_folder(const std::string& checkpoint);

/// True when a save finished there and no rank's file is missing or cut.
bool has_training_state(const std::string& folder);

/// True on the ranks that write slices: one replica of the model is enough. Collective.
bool writes_slices(const fsdp::FullyShardedDataParallel& model);

}  // namespace tessera::checkpoint
