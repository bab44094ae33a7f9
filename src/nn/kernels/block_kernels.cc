#include "nn/kernels/block_kernels.h"

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/block_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {

/// kSize: the size, 0 where it is not known to the compiler.
template <std::int64_t kSize>
void product_of(const float* x, const float* t, float* y, const BlockRows& shape) {
  const std::int64_t n = kSize > 0 ? kSize : shape.size;
  for (std::int64_t c = 0; c < shape.count; ++c) {
    const float* block = t + c * n * n;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const float* from = x + r * shape.stride + c * n;
      float* to = y + r * shape.stride + c * n;
      for (std::int64_t j = 0; j < n; ++j) to[j] = from[0] * block[j];
      for (std::int64_t i = 1; i < n; ++i) {
        const float factor = from[i];
#pragma omp simd
        for (std::int64_t j = 0; j < n; ++j) to[j] += factor * block[i * n + j];
      }
    }
  }
}

template <std::int64_t kSize>
void gradient_of(const float* x, const float* g, float* sums, const BlockRows& shape) {
  const std::int64_t n = kSize > 0 ? kSize : shape.size;
  for (std::int64_t c = 0; c < shape.count; ++c) {
    for (std::int64_t i = 0; i < n; ++i) {
      float* sum = sums + (c * n + i) * n;
      for (std::int64_t r = 0; r < shape.rows; ++r) {
        const float factor = x[r * shape.stride + c * n + i];
        const float* row = g + r * shape.stride + c * n;
#pragma omp simd
        for (std::int64_t j = 0; j < n; ++j) sum[j] += factor * row[j];
      }
    }
  }
}

void block_product(const float* x, const float* t, float* y, const BlockRows& shape) {
  if (shape.size == 4) return product_of<4>(x, t, y, shape);
  if (shape.size == 8) return product_of<8>(x, t, y, shape);
  if (shape.size == 32) return product_of<32>(x, t, y, shape);
  product_of<0>(x, t, y, shape);
}

void block_gradient(const float* x, const float* g, float* sums, const BlockRows& shape) {
  if (shape.size == 4) return gradient_of<4>(x, g, sums, shape);
  if (shape.size == 8) return gradient_of<8>(x, g, sums, shape);
  if (shape.size == 32) return gradient_of<32>(x, g, sums, shape);
  gradient_of<0>(x, g, sums, shape);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::nn::kernels {

HWY_EXPORT(block_product);
HWY_EXPORT(block_gradient);

void block_product(const float* x, const float* t, float* y, const BlockRows& shape) {
  TESSERA_DISPATCH(block_product)(x, t, y, shape);
}
void block_gradient(const float* x, const float* g, float* sums, const BlockRows& shape) {
  TESSERA_DISPATCH(block_gradient)(x, g, sums, shape);
}

}  // namespace tessera::nn::kernels
#endif
