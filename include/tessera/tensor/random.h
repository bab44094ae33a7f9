#pragma once
#include <cstdint>

namespace tessera {

/// Starts everything that draws again: this thread's stream (nn::Dropout and whatever else of this library draws) from
/// `seed` and `stream`, libtorch's generators (at::dropout, at::randn; those of the process, for the CPU and for each
/// device) from seed + stream. Ranks that must draw the same, as for initial weights, give no stream; ranks that want
/// numbers of their own, as for their own data, give their rank. Afterwards every draw is kept: activation
/// checkpointing (nn/block.h) draws the same numbers again, and training state (checkpoint/state.h) keeps where each
/// rank is.
void manual_seed(std::uint64_t seed, std::uint64_t stream = 0);

}  // namespace tessera
