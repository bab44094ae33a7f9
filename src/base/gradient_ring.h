#pragma once
// How much memory gradients take while they are on their way between ranks: what fsdp/grads/gradient_reducer.h
// allocates and estimate/rank_memory.h foretells. Pure arithmetic.
#include <cstdint>
#include <vector>

namespace tessera {

/// A trainable parameter of the root of at least this many elements is reduced by itself, as soon as its gradient is
/// there.
inline constexpr std::int64_t kAloneNumel = 1 << 20;

/// The size of the ring in which buckets of these sizes take turns: room for the largest, and for three of the usual.
std::int64_t ring_size(std::vector<std::int64_t> buckets);

}  // namespace tessera
