#pragma once
// The scales of GGUF's blocks with the smallest squared error that a search finds, in vectors (base/cpu_dispatch.h).
// Equal bits on every processor.

namespace tessera::io {

/// x = scale * q - min, q from 0 to `high`; min is not negative.
struct ScaleAndMin {
  float scale = 0, min = 0;
};

/// n: a multiple of 16.
ScaleAndMin affine_scale(const float* x, int n, int high);

/// x = scale * q, q from -high - 1 to `high`. n: a multiple of 16.
float symmetric_scale(const float* x, int n, int high);

}  // namespace tessera::io
