#pragma once
// Rotary embedding of one head, float32: pairs of elements turned by angles whose cosines and sines are given, [half].
#include <cstdint>

namespace tessera::nn::kernels {

/// Pairs (i, i + half). y may be x; direction: 1 forward, -1 back.
void rotate_halves(const float* x, float* y, const float* cos, const float* sin, float direction, std::int64_t half);
/// Pairs (2 i, 2 i + 1).
void rotate_neighbours(const float* x, float* y, const float* cos, const float* sin, float direction,
                       std::int64_t half);

}  // namespace tessera::nn::kernels
