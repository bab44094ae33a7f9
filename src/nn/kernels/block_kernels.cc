#include "nn/kernels/block_kernels.h"

#include <type_traits>

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/block_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Sizes whose columns fill vectors: a tile of sums, of some rows and one or two vectors of columns each, stays in
/// registers.
template <std::int64_t kSize>
struct Tile {
  using D = hn::CappedTag<float, kSize>;
  static constexpr std::int64_t kWidth = hn::MaxLanes(D()), kVectors = kSize >= 2 * kWidth ? 2 : 1;
  static constexpr std::int64_t kColumns = kWidth * kVectors, kRows = 8 / kVectors < kSize ? 8 / kVectors : kSize;
  static constexpr bool kPays = kWidth > 1;
};
template <>
struct Tile<0> {
  static constexpr bool kPays = false;
};

/// kRows rows of x (`stride` apart) with the columns of t, whose rows have kSize elements.
template <std::int64_t kSize, std::int64_t kRows, class T = Tile<kSize>>
HWY_INLINE void product_tile(const float* x, const float* t, float* y, std::int64_t stride) {
  constexpr typename T::D d;
  hn::Vec<typename T::D> sums[kRows][T::kVectors];
#pragma GCC unroll 8
  for (std::int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (std::int64_t v = 0; v < T::kVectors; ++v) sums[r][v] = hn::Zero(d);
  for (std::int64_t i = 0; i < kSize; ++i) {
#pragma GCC unroll 2
    for (std::int64_t v = 0; v < T::kVectors; ++v) {
      const auto columns = hn::LoadU(d, t + i * kSize + v * T::kWidth);
#pragma GCC unroll 8
      for (std::int64_t r = 0; r < kRows; ++r)
        sums[r][v] = hn::MulAdd(hn::Set(d, x[r * stride + i]), columns, sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (std::int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (std::int64_t v = 0; v < T::kVectors; ++v) hn::StoreU(sums[r][v], d, y + r * stride + v * T::kWidth);
}

/// sums [T::kRows, T::kColumns], of rows of kSize elements, += x' g.
template <std::int64_t kSize, class T = Tile<kSize>>
HWY_INLINE void gradient_tile(const float* x, const float* g, float* sums, const BlockRows& shape) {
  constexpr typename T::D d;
  hn::Vec<typename T::D> acc[T::kRows][T::kVectors];
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < T::kRows; ++i)
#pragma GCC unroll 2
    for (std::int64_t v = 0; v < T::kVectors; ++v) acc[i][v] = hn::LoadU(d, sums + i * kSize + v * T::kWidth);
  for (std::int64_t r = 0; r < shape.rows; ++r) {
#pragma GCC unroll 2
    for (std::int64_t v = 0; v < T::kVectors; ++v) {
      const auto columns = hn::LoadU(d, g + r * shape.stride + v * T::kWidth);
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < T::kRows; ++i)
        acc[i][v] = hn::MulAdd(hn::Set(d, x[r * shape.stride + i]), columns, acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < T::kRows; ++i)
#pragma GCC unroll 2
    for (std::int64_t v = 0; v < T::kVectors; ++v) hn::StoreU(acc[i][v], d, sums + i * kSize + v * T::kWidth);
}

/// Any size.
void product_of_any(const float* x, const float* t, float* y, const BlockRows& shape) {
  const std::int64_t n = shape.size;
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

void gradient_of_any(const float* x, const float* g, float* sums, const BlockRows& shape) {
  const std::int64_t n = shape.size;
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

template <std::int64_t kSize>
void product_of(const float* x, const float* t, float* y, const BlockRows& shape) {
  using T = Tile<kSize>;
  if constexpr (!T::kPays) {
    product_of_any(x, t, y, shape);
  } else {
    for (std::int64_t c = 0; c < shape.count; ++c) {
      for (std::int64_t j = 0; j < kSize; j += T::kColumns) {
        const float *from = x + c * kSize, *block = t + c * kSize * kSize + j;
        float* to = y + c * kSize + j;
        std::int64_t r = 0;
        for (; r + T::kRows <= shape.rows; r += T::kRows)
          product_tile<kSize, T::kRows>(from + r * shape.stride, block, to + r * shape.stride, shape.stride);
        for (; r < shape.rows; ++r)
          product_tile<kSize, 1>(from + r * shape.stride, block, to + r * shape.stride, shape.stride);
      }
    }
  }
}

template <std::int64_t kSize>
void gradient_of(const float* x, const float* g, float* sums, const BlockRows& shape) {
  using T = Tile<kSize>;
  if constexpr (!T::kPays) {
    gradient_of_any(x, g, sums, shape);
  } else {
    for (std::int64_t c = 0; c < shape.count; ++c)
      for (std::int64_t i = 0; i < kSize; i += T::kRows)
        for (std::int64_t j = 0; j < kSize; j += T::kColumns)
          gradient_tile<kSize>(x + c * kSize + i, g + c * kSize + j, sums + (c * kSize + i) * kSize + j, shape);
  }
}

/// With the size as a constant: 0 is any that has no tile of its own.
template <class Call>
void with_size(std::int64_t size, const Call& call) {
  switch (size) {
    case 4:
      return call(std::integral_constant<std::int64_t, 4>());
    case 8:
      return call(std::integral_constant<std::int64_t, 8>());
    case 16:
      return call(std::integral_constant<std::int64_t, 16>());
    case 32:
      return call(std::integral_constant<std::int64_t, 32>());
    case 64:
      return call(std::integral_constant<std::int64_t, 64>());
    default:
      return call(std::integral_constant<std::int64_t, 0>());
  }
}

void block_product(const float* x, const float* t, float* y, const BlockRows& shape) {
  with_size(shape.size, [&](auto size) { product_of<size()>(x, t, y, shape); });
}

void block_gradient(const float* x, const float* g, float* sums, const BlockRows& shape) {
  with_size(shape.size, [&](auto size) { gradient_of<size()>(x, g, sums, shape); });
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
