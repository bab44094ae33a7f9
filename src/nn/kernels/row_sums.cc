#include "nn/kernels/row_sums.h"

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/row_sums.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr float kLowest = -3.402823466e38f;

HWY_INLINE V set(float x) {
  return hn::Set(D(), x);
}

/// A whole vector at some place of a row.
struct Whole {
  V load(const float* x) const { return hn::LoadU(D(), x); }
  void store(V v, float* y) const { hn::StoreU(v, D(), y); }
  V or_else(V v, V) const { return v; }
};

/// Its last elements: zeros beyond them.
struct Rest {
  hn::Mask<D> mask;
  explicit Rest(std::int64_t n) : mask(hn::FirstN(D(), static_cast<std::size_t>(n))) {}
  V load(const float* x) const { return hn::MaskedLoad(mask, D(), x); }
  void store(V v, float* y) const { hn::BlendedStore(v, mask, D(), y); }
  V or_else(V v, V other) const { return hn::IfThenElse(mask, v, other); }
};

/// body(i, place) for each vector.
template <class Body>
HWY_INLINE void for_vectors(std::int64_t n, const Body& body) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, Whole());
  if (i < n) body(i, Rest(n - i));
}

float total(V v) {
  return hn::GetLane(hn::SumOfLanes(D(), v));
}

// x <= ~88, relative error below 2e-7: 2^k times a degree-6 polynomial on [-ln2/2, ln2/2] (Cephes' constants).
HWY_INLINE V exponential(V x) {
  const auto big = set(12582912.0f);  // 1.5 * 2^23: the low bits hold the nearest integer
  const auto shifted = hn::MulAdd(x, set(1.44269504f), big);
  const auto k = hn::Sub(shifted, big);
  const auto r = hn::MulAdd(k, set(2.12194440e-4f), hn::NegMulAdd(k, set(0.693359375f), x));
  auto p = set(1.9875691500e-4f);
  p = hn::MulAdd(p, r, set(1.3981999507e-3f));
  p = hn::MulAdd(p, r, set(8.3334519073e-3f));
  p = hn::MulAdd(p, r, set(4.1665795894e-2f));
  p = hn::MulAdd(p, r, set(1.6666665459e-1f));
  p = hn::MulAdd(p, r, set(5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(hn::Mul(p, r), r, r), set(1.0f));
  const hn::RebindToSigned<D> integers;
  const auto power = hn::Add(hn::BitCast(integers, shifted), hn::Set(integers, 127 - 0x4B400000));
  const auto y = hn::Mul(p, hn::BitCast(D(), hn::ShiftLeft<23>(power)));
  return hn::IfThenZeroElse(hn::Lt(x, set(-87.0f)), y);  // and NaN where x is
}

float largest(const float* x, std::int64_t n) {
  auto top = set(kLowest);
  for_vectors(n, [&](std::int64_t i, auto at) { top = hn::Max(top, at.or_else(at.load(x + i), top)); });
  return hn::GetLane(hn::MaxOfLanes(D(), top));
}

float sum(const float* x, std::int64_t n) {
  auto sums = hn::Zero(D());
  for_vectors(n, [&](std::int64_t i, auto at) { sums = hn::Add(sums, at.load(x + i)); });
  return total(sums);
}

float dot(const float* x, const float* y, std::int64_t n) {
  auto sum = hn::Zero(D());
  for_vectors(n, [&](std::int64_t i, auto at) { sum = hn::MulAdd(at.load(x + i), at.load(y + i), sum); });
  return total(sum);
}

/// add(sum, exponentials, i, place) for each vector of them, 0 beyond the row; returns the total of sum.
template <class Add>
HWY_INLINE float add_exponentials(const float* x, float factor, float shift, std::int64_t n, const Add& add) {
  auto sum = hn::Zero(D());
  for_vectors(n, [&](std::int64_t i, auto at) {
    const auto e = exponential(hn::MulSub(at.load(x + i), set(factor), set(shift)));
    sum = add(sum, at.or_else(e, hn::Zero(D())), i, at);
  });
  return total(sum);
}

float exponentials(const float* x, float* y, float factor, float shift, std::int64_t n) {
  return add_exponentials(x, factor, shift, n, [&](V sum, V e, std::int64_t i, auto at) {
    at.store(e, y + i);
    return hn::Add(sum, e);
  });
}
float exponentials_dot(const float* x, float* y, float factor, float shift, const float* g, std::int64_t n) {
  return add_exponentials(x, factor, shift, n, [&](V sum, V e, std::int64_t i, auto at) {
    at.store(e, y + i);
    return hn::MulAdd(e, at.load(g + i), sum);
  });
}
float sum_of_exponentials(const float* x, float factor, float shift, std::int64_t n) {
  return add_exponentials(x, factor, shift, n, [&](V sum, V e, std::int64_t, auto) { return hn::Add(sum, e); });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::nn::kernels {

HWY_EXPORT(largest);
HWY_EXPORT(sum);
HWY_EXPORT(dot);
HWY_EXPORT(exponentials);
HWY_EXPORT(exponentials_dot);
HWY_EXPORT(sum_of_exponentials);

float largest(const float* x, std::int64_t n) {
  return TESSERA_DISPATCH(largest)(x, n);
}
float sum(const float* x, std::int64_t n) {
  return TESSERA_DISPATCH(sum)(x, n);
}
float dot(const float* x, const float* y, std::int64_t n) {
  return TESSERA_DISPATCH(dot)(x, y, n);
}
float exponentials(const float* x, float* y, float factor, float shift, std::int64_t n) {
  return TESSERA_DISPATCH(exponentials)(x, y, factor, shift, n);
}
float exponentials_dot(const float* x, float* y, float factor, float shift, const float* g, std::int64_t n) {
  return TESSERA_DISPATCH(exponentials_dot)(x, y, factor, shift, g, n);
}
float sum_of_exponentials(const float* x, float factor, float shift, std::int64_t n) {
  return TESSERA_DISPATCH(sum_of_exponentials)(x, factor, shift, n);
}

}  // namespace tessera::nn::kernels
#endif
