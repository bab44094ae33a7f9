#pragma once
// Going on from a checkpoint: its values are read, put in place and compared with the manifest's checksums in one pass.
#include <string>

#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/optimizer.h"

namespace tessera::checkpoint {

/// Collective. load_training_state() from a folder checkpoint-N, all of whose files are compared, the ranks sharing the
/// reading. Returns what keeps the run from going on from it, in words, the same on every rank; empty: nothing.
/// Parameters and optimizer are undefined then: another checkpoint must be restored, or the run end. CheckpointError on
/// every rank when the folder is whole and belongs to another model.
std::string restore_checkpoint(fsdp::FullyShardedDataParallel& model, optim::Optimizer* optimizer,
                               const std::string& checkpoint);

}  // namespace tessera::checkpoint
