// Vectors of a panel's tokens (nn/kernels/token_panels.h), compiled once for each level by the source that includes it.
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

/// Each block of four lanes of four vectors is a matrix of 4 x 4, which is turned.
HWY_INLINE void turn_blocks(Vector& v0, Vector& v1, Vector& v2, Vector& v3) {
  constexpr Floats d;
  constexpr hn::Repartition<double, Floats> pairs;
  const auto lower = hn::BitCast(pairs, hn::InterleaveLower(d, v0, v1));
  const auto upper = hn::BitCast(pairs, hn::InterleaveUpper(d, v0, v1));
  const auto other_lower = hn::BitCast(pairs, hn::InterleaveLower(d, v2, v3));
  const auto other_upper = hn::BitCast(pairs, hn::InterleaveUpper(d, v2, v3));
  v0 = hn::BitCast(d, hn::InterleaveLower(pairs, lower, other_lower));
  v1 = hn::BitCast(d, hn::InterleaveUpper(pairs, lower, other_lower));
  v2 = hn::BitCast(d, hn::InterleaveLower(pairs, upper, other_upper));
  v3 = hn::BitCast(d, hn::InterleaveUpper(pairs, upper, other_upper));
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
  turn_blocks(v0, v1, v2, v3);
  store_sum_of_blocks(Floats(), hn::Add(hn::Add(v0, v1), hn::Add(v2, v3)), out);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();
#endif
