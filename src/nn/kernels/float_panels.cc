#include "nn/kernels/float_panels.h"

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/float_panels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "nn/kernels/float_math.h"
#include "nn/kernels/panel_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {

// Sums of so many rows and two vectors of columns stay in registers, of which there are 16 or 32.
constexpr bool kHas32Registers = HWY_MAX_BYTES == 64 || !HWY_ARCH_X86;
constexpr int kMostRows = kHas32Registers ? 12 : 6;

#if HWY_TARGET == HWY_SCALAR  // no vectors of Highway's: two that the compiler makes of loops
std::int64_t panel_columns() {
  return 8;
}
#else
std::int64_t panel_columns() {
  return 2 * static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
}
#endif

/// Calls use(first row, rows) for groups of up to kMostRows, of nearly equal size: a small last one would wait for its
/// few sums.
template <class Use>
void by_groups(std::int64_t rows, const Use& use) {
  const std::int64_t groups = (rows + kMostRows - 1) / kMostRows;
  for (std::int64_t g = 0, first = 0; g < groups; ++g) {
    const std::int64_t size = rows / groups + (g < rows % groups ? 1 : 0);
    use(first, size);
    first += size;
  }
}

#if HWY_TARGET == HWY_SCALAR
template <class T>
void pack_group(const T* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out) {
  for (std::int64_t k = 0; k < depth; ++k)
    for (std::int64_t r = 0; r < rows; ++r) *out++ = widened(a[r * stride + k]);
}
#else
template <class D>
HWY_INLINE hn::Vec<D> load_four(D d, const float* x) {
  return hn::LoadU(d, x);
}
/// bfloat16, as its bits.
template <class D>
HWY_INLINE hn::Vec<D> load_four(D d, const std::uint16_t* x) {
  const hn::RebindToUnsigned<D> wide;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(hn::Rebind<std::uint16_t, D>(), x))));
}

/// Four rows at a time. Behind a column's last row a store leaves up to three floats, where the next one goes.
template <int kFours, class T>
void pack_fours(const T* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out) {
  const hn::FixedTag<float, 4> d;
  std::int64_t k = 0;
  for (; k + 4 <= depth; k += 4, out += 4 * rows) {
    hn::Vec<decltype(d)> x[kFours][4];
    HWY_UNROLL(3) for (int f = 0; f < kFours; ++f) {
      HWY_UNROLL(4)
      for (int r = 0; r < 4; ++r) x[f][r] = load_four(d, a + std::min<std::int64_t>(4 * f + r, rows - 1) * stride + k);
      transpose(d, x[f]);
    }
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i)
      HWY_UNROLL(3) for (int f = 0; f < kFours; ++f) hn::StoreU(x[f][i], d, out + i * rows + 4 * f);
  }
  for (; k < depth; ++k)
    for (std::int64_t r = 0; r < rows; ++r) *out++ = widened(a[r * stride + k]);
}

template <class T>
void pack_group(const T* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out) {
  static_assert(kMostRows <= 12);
  if (rows <= 4) return pack_fours<1>(a, stride, rows, depth, out);
  if (rows <= 8) return pack_fours<2>(a, stride, rows, depth, out);
  pack_fours<3>(a, stride, rows, depth, out);
}
#endif

template <class T>
void pack_rows_of(const T* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out) {
  by_groups(rows, [&](std::int64_t first, std::int64_t size) {
    pack_group(a + first * stride, stride, size, depth, out + first * depth);
  });
}

template <class T>
void pack_columns_of(const T* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out) {
  by_groups(rows, [&](std::int64_t first, std::int64_t size) {
    const T* from = a + first;
    float* to = out + first * depth;
    for (std::int64_t k = 0; k < depth; ++k, from += stride, to += size)
      for (std::int64_t r = 0; r < size; ++r) to[r] = widened(from[r]);
  });
}

void pack_rows(const float* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out) {
  pack_rows_of(a, stride, rows, depth, out);
}
void pack_rows_bfloat16(const std::uint16_t* a, std::int64_t stride, std::int64_t rows, std::int64_t depth,
                        float* out) {
  pack_rows_of(a, stride, rows, depth, out);
}
void pack_columns(const float* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out) {
  pack_columns_of(a, stride, rows, depth, out);
}
void pack_columns_bfloat16(const std::uint16_t* a, std::int64_t stride, std::int64_t rows, std::int64_t depth,
                           float* out) {
  pack_columns_of(a, stride, rows, depth, out);
}

void panel_of_rows(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t columns, float* panel) {
  const auto width = panel_columns();
  for (std::int64_t k = 0; k < depth; ++k, b += stride, panel += width) {
#if HWY_TARGET != HWY_SCALAR
    if (columns == width) {
      const hn::ScalableTag<float> d;
      hn::StoreU(hn::LoadU(d, b), d, panel);
      hn::StoreU(hn::LoadU(d, b + width / 2), d, panel + width / 2);
      continue;
    }
#endif
    std::copy_n(b, columns, panel);
    std::fill(panel + columns, panel + width, 0.0f);
  }
}

#if HWY_TARGET == HWY_SCALAR
void panel_of_columns(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t columns, float* panel) {
  const auto width = panel_columns();
  for (std::int64_t n = 0; n < width; ++n)
    for (std::int64_t k = 0; k < depth; ++k) panel[k * width + n] = n < columns ? b[n * stride + k] : 0.0f;
}
#else
/// As many rows as a vector has lanes, four of each, become four columns.
template <class D>
HWY_INLINE void transpose_fours(D d, const float* b, std::int64_t stride, float* panel, std::int64_t width) {
  hn::Vec<D> x[4];
  HWY_UNROLL(4) for (int i = 0; i < 4; ++i) x[i] = load_blocks(d, b + i * stride, 4 * stride);
  transpose(d, x);
  HWY_UNROLL(4) for (int i = 0; i < 4; ++i) hn::StoreU(x[i], d, panel + i * width);
}

void panel_of_columns(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t columns, float* panel) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d)), width = panel_columns();
  const auto whole = columns / lanes * lanes, fours = depth / 4 * 4;
  for (std::int64_t k = 0; k < fours; k += 4)
    for (std::int64_t n = 0; n < whole; n += lanes)
      transpose_fours(d, b + n * stride + k, stride, panel + k * width + n, width);
  for (std::int64_t k = fours; k < depth; ++k)
    for (std::int64_t n = 0; n < whole; ++n) panel[k * width + n] = b[n * stride + k];
  for (std::int64_t n = whole; n < width; ++n)
    for (std::int64_t k = 0; k < depth; ++k) panel[k * width + n] = n < columns ? b[n * stride + k] : 0.0f;
}
#endif

#if HWY_TARGET == HWY_SCALAR
template <int kRows>
void multiply(const float* left, const float* panel, std::int64_t depth, const PanelSums& sums) {
  constexpr int kColumns = 8;
  float total[kRows][kColumns] = {};
  for (std::int64_t k = 0; k < depth; ++k, left += kRows, panel += kColumns)
    for (int r = 0; r < kRows; ++r)
#pragma omp simd
      for (int n = 0; n < kColumns; ++n) total[r][n] += left[r] * panel[n];
  for (int r = 0; r < kRows; ++r)
    for (int n = 0; n < kColumns; ++n) {
      float& sum = sums.at[r * sums.stride + n];
      sum = sums.add ? sum + total[r][n] : total[r][n];
    }
}
#else
template <int kRows>
void multiply(const float* left, const float* panel, std::int64_t depth, const PanelSums& sums) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> first[kRows], second[kRows];
  HWY_UNROLL(12) for (int r = 0; r < kRows; ++r) first[r] = second[r] = hn::Zero(d);
  for (std::int64_t k = 0; k < depth; ++k, left += kRows, panel += 2 * lanes) {
    const auto b0 = hn::LoadU(d, panel), b1 = hn::LoadU(d, panel + lanes);
    HWY_UNROLL(12) for (int r = 0; r < kRows; ++r) {
      const auto a = hn::Set(d, left[r]);
      first[r] = hn::MulAdd(a, b0, first[r]);
      second[r] = hn::MulAdd(a, b1, second[r]);
    }
  }
  HWY_UNROLL(12) for (int r = 0; r < kRows; ++r) {
    float* out = sums.at + r * sums.stride;
    if (sums.add) {
      first[r] = hn::Add(hn::LoadU(d, out), first[r]);
      second[r] = hn::Add(hn::LoadU(d, out + lanes), second[r]);
    }
    hn::StoreU(first[r], d, out);
    hn::StoreU(second[r], d, out + lanes);
  }
}
#endif

template <int kRows = kMostRows>
void multiply_rows(std::int64_t rows, const float* left, const float* panel, std::int64_t depth,
                   const PanelSums& sums) {
  if (rows == kRows) return multiply<kRows>(left, panel, depth, sums);
  if constexpr (kRows > 1) multiply_rows<kRows - 1>(rows, left, panel, depth, sums);
}

void panel_product(const float* left, std::int64_t rows, const float* panel, std::int64_t depth, const PanelSums& sums,
                   Prefetch& ahead, std::int64_t lines) {
  const std::int64_t groups = (rows + kMostRows - 1) / kMostRows;
  by_groups(rows, [&](std::int64_t first, std::int64_t size) {
    ahead.fetch((lines + groups - 1) / groups);
    multiply_rows(size, left + first * depth, panel, depth, {sums.at + first * sums.stride, sums.stride, sums.add});
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::nn::kernels {

HWY_EXPORT(panel_columns);
HWY_EXPORT(pack_rows);
HWY_EXPORT(pack_rows_bfloat16);
HWY_EXPORT(pack_columns);
HWY_EXPORT(pack_columns_bfloat16);
HWY_EXPORT(panel_of_rows);
HWY_EXPORT(panel_of_columns);
HWY_EXPORT(panel_product);

std::int64_t float_panel_columns() {
  return TESSERA_DISPATCH(panel_columns)();
}
void pack_rows(const float* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out) {
  TESSERA_DISPATCH(pack_rows)(a, stride, rows, depth, out);
}
void pack_rows(const std::uint16_t* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out) {
  TESSERA_DISPATCH(pack_rows_bfloat16)(a, stride, rows, depth, out);
}
void pack_columns(const std::uint16_t* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out) {
  TESSERA_DISPATCH(pack_columns_bfloat16)(a, stride, rows, depth, out);
}
void pack_columns(const float* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out) {
  TESSERA_DISPATCH(pack_columns)(a, stride, rows, depth, out);
}
void panel_of_rows(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t columns, float* panel) {
  TESSERA_DISPATCH(panel_of_rows)(b, stride, depth, columns, panel);
}
void panel_of_columns(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t columns, float* panel) {
  TESSERA_DISPATCH(panel_of_columns)(b, stride, depth, columns, panel);
}
void panel_product(const float* left, std::int64_t rows, const float* panel, std::int64_t depth, const PanelSums& sums,
                   Prefetch& ahead, std::int64_t lines) {
  TESSERA_DISPATCH(panel_product)(left, rows, panel, depth, sums, ahead, lines);
}

}  // namespace tessera::nn::kernels
#endif
