#include "nn/kernels/rotary_kernels.h"

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/rotary_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {

void rotate_halves(const float* x, float* y, const float* cos, const float* sin, float direction, std::int64_t half) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half], s = direction * sin[i];
    y[i] = a * cos[i] - b * s;
    y[i + half] = b * cos[i] + a * s;
  }
}

void rotate_neighbours(const float* x, float* y, const float* cos, const float* sin, float direction,
                       std::int64_t half) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1], s = direction * sin[i];
    y[2 * i] = a * cos[i] - b * s;
    y[2 * i + 1] = b * cos[i] + a * s;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::nn::kernels {

HWY_EXPORT(rotate_halves);
HWY_EXPORT(rotate_neighbours);

void rotate_halves(const float* x, float* y, const float* cos, const float* sin, float direction, std::int64_t half) {
  TESSERA_DISPATCH(rotate_halves)(x, y, cos, sin, direction, half);
}
void rotate_neighbours(const float* x, float* y, const float* cos, const float* sin, float direction,
                       std::int64_t half) {
  TESSERA_DISPATCH(rotate_neighbours)(x, y, cos, sin, direction, half);
}

}  // namespace tessera::nn::kernels
#endif
