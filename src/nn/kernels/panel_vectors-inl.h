// Vectors of floats in blocks of four lanes, which become columns and rows: for nn/kernels/token_panels.h,
// panel_fourier.h and float_panels.h. Compiled once for each level by the source that includes it.
#if defined(TESSERA_NN_KERNELS_PANEL_VECTORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_NN_KERNELS_PANEL_VECTORS_INL_H
#undef TESSERA_NN_KERNELS_PANEL_VECTORS_INL_H
#else
#define TESSERA_NN_KERNELS_PANEL_VECTORS_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Floats>;
constexpr std::int64_t kLanes = hn::MaxLanes(Floats());

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void sums_of_four(Vector v0, Vector v1, Vector v2, Vector v3, float* out) {
  const Vector all[] = {v0, v1, v2, v3};
  for (std::int64_t i = 0; i < 4; ++i) out[i] = hn::GetLane(all[i]);
}
#else
static_assert(kLanes == 4 || kLanes == 8 || kLanes == 16);

/// A vector's blocks of four lanes, `distance` apart in memory.
template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, float* out, std::int64_t distance) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, out);
  } else {
    constexpr hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, v), out, distance);
    store_blocks(half, hn::UpperHalf(half, v), out + hn::MaxLanes(half) / 4 * distance, distance);
  }
}
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const float* x, std::int64_t distance) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, x);
  } else {
    constexpr hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, x + hn::MaxLanes(half) / 4 * distance, distance),
                       load_blocks(half, x, distance));
  }
}

/// The columns of four vectors, each of whose blocks of four lanes is a row of four.
template <class D>
HWY_INLINE void transpose(D d, hn::Vec<D> (&x)[4]) {
  const hn::Repartition<double, D> pairs;
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, x[0], x[1])),
             low23 = hn::BitCast(pairs, hn::InterleaveLower(d, x[2], x[3])),
             high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, x[0], x[1])),
             high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, x[2], x[3]));
  x[0] = hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23));
  x[1] = hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23));
  x[2] = hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23));
  x[3] = hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23));
}

/// The blocks of four lanes, added up.
template <class D>
HWY_INLINE void store_sum_of_blocks(D d, hn::Vec<D> v, float* out) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, out);
  } else {
    constexpr hn::Half<D> half;
    store_sum_of_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), out);
  }
}

/// Four vectors' sums, in order.
HWY_INLINE void sums_of_four(Vector v0, Vector v1, Vector v2, Vector v3, float* out) {
  Vector v[4] = {v0, v1, v2, v3};
  transpose(Floats(), v);
  store_sum_of_blocks(Floats(), hn::Add(hn::Add(v[0], v[1]), hn::Add(v[2], v[3])), out);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();
#endif
