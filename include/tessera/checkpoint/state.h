#pragma once
// Saving and loading what fully_shard() has sharded.
#include <memory>
#include <string>

#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/optimizer.h"

namespace tessera::checkpoint {

/// Collective; rank 0 writes, one unit at a time. Every parameter, whole, and rank 0's buffers (statistics of a
/// BatchNorm), under their qualified names, in a safetensors file that gets its name when it is complete.
/// CheckpointError on every rank when it cannot be written.
void save_weights(fsdp::FullyShardedDataParallel& model, const std::string& file);

/// Collective. Every rank reads its slices of all parameters, and all buffers, from what io::open_weights() takes.
/// DataError names one that is missing or has another shape. What else the file has is passed over.
void load_weights(fsdp::FullyShardedDataParallel& model, const std::string& path);

/// Collective. For going on: every rank writes its slices of the trainable parameters and of the optimizer's state, its
/// buffers, and where its random numbers are (see tensor/random.h), into `folder`. CheckpointError on every rank when
/// one of them cannot write.
void save_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer, const std::string& folder);

/// Collective; any world size reads what another has written. With the same world size the buffers and random numbers
/// of all ranks, this library's and libtorch's, go on where they were: do not seed after it. With another one buffers
/// are those of rank 0. optimizer: null reads the parameters only. CheckpointError names the file, or the parameter of
/// which a part is missing.
void load_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer* optimizer, const std::string& folder);

/// True when a save finished there and no rank's file is missing or cut.
bool has_training_state(const std::string& folder);

}  // namespace tessera::checkpoint
