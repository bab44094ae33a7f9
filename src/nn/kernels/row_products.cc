#include "nn/kernels/row_products.h"

#include "base/cpu_dispatch.h"
#include "nn/kernels/float_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/row_products.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

TESSERA_INLINE V load(const float* x) {
  return hn::LoadU(D(), x);
}
TESSERA_INLINE V load(const std::uint16_t* x) {
  const auto bits = hn::PromoteTo(hn::Rebind<std::uint32_t, D>(), hn::LoadU(hn::Rebind<std::uint16_t, D>(), x));
  return hn::BitCast(D(), hn::ShiftLeft<16>(bits));
}
TESSERA_INLINE V load(const Float16* x) {
  const auto bits = hn::LoadU(hn::Rebind<std::uint16_t, D>(), &x->bits);
#if HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM
  return hn::PromoteTo(D(), hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
#else  // Highway's own way makes numbers of infinities
  const hn::RebindToUnsigned<D> words;
  const auto wide = hn::PromoteTo(words, bits);
  const auto shifted = hn::ShiftLeft<13>(hn::And(wide, hn::Set(words, 0x7FFF)));
  const auto values = hn::BitCast(words, hn::Mul(hn::BitCast(D(), shifted), hn::Set(D(), 0x1p112f)));
  const auto special = hn::IfThenElseZero(hn::Ge(shifted, hn::Set(words, 0x7C00U << 13)), hn::Set(words, 0x7F800000));
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(words, 0x8000)));
  return hn::BitCast(D(), hn::Or(hn::Or(values, special), sign));
#endif
}

/// Of `Few` rows of x with `Rows` of the matrix, whose sums do not wait for one another.
template <int Few, int Rows, class T>
TESSERA_INLINE void some_products(const float* x, const T* matrix, const MatrixRows& rows, float* y,
                                  std::int64_t y_stride) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  V sums[Few][Rows];
#pragma GCC unroll 2
  for (int f = 0; f < Few; ++f)
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) sums[f][r] = hn::Zero(D());
  std::int64_t i = 0;
  for (; i + lanes <= rows.dim; i += lanes) {
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const V part = load(matrix + r * rows.stride + i);
#pragma GCC unroll 2
      for (int f = 0; f < Few; ++f) sums[f][r] = hn::MulAdd(load(x + f * rows.dim + i), part, sums[f][r]);
    }
  }
#pragma GCC unroll 2
  for (int f = 0; f < Few; ++f) {
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      float sum = hn::GetLane(hn::SumOfLanes(D(), sums[f][r]));
      for (std::int64_t j = i; j < rows.dim; ++j) sum += x[f * rows.dim + j] * widened(matrix[r * rows.stride + j]);
      y[f * y_stride + r] = sum;
    }
  }
}

template <int Rows, class T>
TESSERA_INLINE void rows_products(const float* x, std::int64_t few, const T* matrix, const MatrixRows& rows, float* y,
                                  std::int64_t y_stride) {
  for (; few >= 2; few -= 2, x += 2 * rows.dim, y += 2 * y_stride) some_products<2, Rows>(x, matrix, rows, y, y_stride);
  if (few == 1) some_products<1, Rows>(x, matrix, rows, y, y_stride);
}

template <class T>
TESSERA_INLINE void products(const float* x, std::int64_t few, const T* matrix, const MatrixRows& rows, float* y,
                             std::int64_t y_stride) {
  constexpr int kTogether = 4;
  std::int64_t r = 0;
  for (; r + kTogether <= rows.count; r += kTogether, matrix += kTogether * rows.stride)
    rows_products<kTogether>(x, few, matrix, rows, y + r, y_stride);
  for (; r < rows.count; ++r, matrix += rows.stride) rows_products<1>(x, few, matrix, rows, y + r, y_stride);
}

/// `Few` sums stay in registers for all rows.
template <int Few, class T>
TESSERA_INLINE void weigh(const float* x, const T* matrix, const MatrixRows& rows, float* y) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  std::int64_t i = 0;
  for (; i + lanes <= rows.dim; i += lanes) {
    V sums[Few];
#pragma GCC unroll 4
    for (V& sum : sums) sum = hn::Zero(D());
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const V part = load(matrix + r * rows.stride + i);
#pragma GCC unroll 4
      for (int f = 0; f < Few; ++f) sums[f] = hn::MulAdd(hn::Set(D(), x[f * rows.count + r]), part, sums[f]);
    }
#pragma GCC unroll 4
    for (int f = 0; f < Few; ++f) hn::StoreU(sums[f], D(), y + f * rows.dim + i);
  }
  for (; i < rows.dim; ++i) {
    for (int f = 0; f < Few; ++f) {
      float sum = 0;
      for (std::int64_t r = 0; r < rows.count; ++r) sum += x[f * rows.count + r] * widened(matrix[r * rows.stride + i]);
      y[f * rows.dim + i] = sum;
    }
  }
}

template <class T>
TESSERA_INLINE void weigh_all(const float* x, std::int64_t few, const T* matrix, const MatrixRows& rows, float* y) {
  constexpr std::int64_t kTogether = 4;
  for (; few >= kTogether; few -= kTogether, x += kTogether * rows.count, y += kTogether * rows.dim)
    weigh<kTogether>(x, matrix, rows, y);
  if (few == 3) weigh<3>(x, matrix, rows, y);
  if (few == 2) weigh<2>(x, matrix, rows, y);
  if (few == 1) weigh<1>(x, matrix, rows, y);
}

void float_products(const float* x, std::int64_t few, const float* matrix, const MatrixRows& rows, float* y,
                    std::int64_t y_stride) {
  products(x, few, matrix, rows, y, y_stride);
}
void bfloat16_products(const float* x, std::int64_t few, const std::uint16_t* matrix, const MatrixRows& rows, float* y,
                       std::int64_t y_stride) {
  products(x, few, matrix, rows, y, y_stride);
}
void float16_products(const float* x, std::int64_t few, const Float16* matrix, const MatrixRows& rows, float* y,
                      std::int64_t y_stride) {
  products(x, few, matrix, rows, y, y_stride);
}
void weighted_floats(const float* x, std::int64_t few, const float* matrix, const MatrixRows& rows, float* y) {
  weigh_all(x, few, matrix, rows, y);
}
void weighted_bfloat16s(const float* x, std::int64_t few, const std::uint16_t* matrix, const MatrixRows& rows,
                        float* y) {
  weigh_all(x, few, matrix, rows, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::nn::kernels {

HWY_EXPORT(float_products);
HWY_EXPORT(bfloat16_products);
HWY_EXPORT(float16_products);
HWY_EXPORT(weighted_floats);
HWY_EXPORT(weighted_bfloat16s);

void row_products(const float* x, std::int64_t few, const float* matrix, const MatrixRows& rows, float* y,
                  std::int64_t y_stride) {
  TESSERA_DISPATCH(float_products)(x, few, matrix, rows, y, y_stride);
}
void row_products(const float* x, std::int64_t few, const std::uint16_t* matrix, const MatrixRows& rows, float* y,
                  std::int64_t y_stride) {
  TESSERA_DISPATCH(bfloat16_products)(x, few, matrix, rows, y, y_stride);
}
void row_products(const float* x, std::int64_t few, const Float16* matrix, const MatrixRows& rows, float* y,
                  std::int64_t y_stride) {
  TESSERA_DISPATCH(float16_products)(x, few, matrix, rows, y, y_stride);
}
void weighted_rows(const float* x, std::int64_t few, const float* matrix, const MatrixRows& rows, float* y) {
  TESSERA_DISPATCH(weighted_floats)(x, few, matrix, rows, y);
}
void weighted_rows(const float* x, std::int64_t few, const std::uint16_t* matrix, const MatrixRows& rows, float* y) {
  TESSERA_DISPATCH(weighted_bfloat16s)(x, few, matrix, rows, y);
}

}  // namespace tessera::nn::kernels
#endif
