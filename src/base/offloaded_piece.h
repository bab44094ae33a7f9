#pragma once
// How much of a parameter's slice an optimizer has in memory at once where state is offloaded: what
// optim/flat_optimizer.cc fetches and estimate/rank_memory.h foretells.
#include <cstdint>

namespace tessera {

inline constexpr std::int64_t kOffloadedPiece = 1 << 20;  // elements

}  // namespace tessera
