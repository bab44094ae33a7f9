#pragma once
// What a run needs to go on as if it had never stopped, sharded: in `folder`, a file for each rank with its slices of
// the trainable parameters (masters) and of the optimizer's state, with its buffers and its generators of random
// numbers; then state.json with what is common. Any world size reads it: a slice is (name, offset), so reading at
// another number of ranks is interval arithmetic.
#include <memory>
#include <string>

#include "checkpoint/save_queue.h"
#include "tessera/checkpoint/state.h"
#include "tessera/io/tensor_source.h"

namespace tessera::checkpoint {

inline constexpr int kTrainingStateVersion = 2;
inline constexpr const char* kParametersKind = "parameters";  // what is stored of each trainable one, beside states
inline constexpr const char* kBuffersKind = "buffers";        // of each rank, under name_of_rank()
inline constexpr const char* kGeneratorKind = "generator";    // libtorch's, of each device, alike
std::string name_of_rank(const std::string& name, int rank);

/// Collective. save_training_state() through a queue: its jobs copy the slices first (SaveQueue::wait_copied() says
/// when the optimizer may go on), then write.
void push_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer, const std::string& folder,
                         SaveQueue& queue);

/// Where a checkpoint folder keeps it.
std::string training_state_folder(const std::string& checkpoint);

/// Who else reads the slices that a rank holds.
io::Readers readers_of_slices(const fsdp::FullyShardedDataParallel& model);

/// True on the ranks that write slices: one replica of the model is enough. Collective.
bool writes_slices(const fsdp::FullyShardedDataParallel& model);

}  // namespace tessera::checkpoint
