#include "io/gguf_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/cpu_dispatch.h"

// Once for each level of instructions. Compiled without fused additions, and sums have sixteen lanes whatever a
// vector's width, so that scales have equal bits on all of them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "io/gguf_scales.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::io {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kLanes = 16;
using Floats = hn::CappedTag<float, kLanes>;
using FloatVector = hn::Vec<Floats>;
constexpr int kWidth = hn::MaxLanes(Floats()), kVectors = kLanes / kWidth;

class Sum {
 public:
  Sum() {
    for (auto& part : parts_) part = hn::Zero(Floats());
  }
  HWY_INLINE void add(int vector, FloatVector values) { parts_[vector] = hn::Add(parts_[vector], values); }
  float total() const {
    float lanes[kLanes];
    for (int k = 0; k < kVectors; ++k) hn::StoreU(parts_[k], Floats(), lanes + k * kWidth);
    for (int i = 0; i < 8; ++i) lanes[i] += lanes[i + 8];
    for (int i = 0; i < 4; ++i) lanes[i] += lanes[i + 4];
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  }

 private:
  FloatVector parts_[kVectors];
};

/// visit(vector, values), n values in all.
template <class Visit>
HWY_INLINE void for_vectors(const float* x, int n, const Visit& visit) {
  for (int i = 0; i < n; i += kLanes)
    for (int k = 0; k < kVectors; ++k) visit(k, hn::LoadU(Floats(), x + i + k * kWidth));
}

HWY_INLINE FloatVector levels(FloatVector x, float low, float high) {
  return hn::Min(hn::Max(hn::Round(x), hn::Set(Floats(), low)), hn::Set(Floats(), high));
}

/// What the levels of a scale and a minimum give.
struct Fit {
  float error, q1, q2, xq;  // sums of (x - value)^2, q, q^2, x q
};

Fit fit_of(const float* x, int n, int high, ScaleAndMin s) {
  const Floats floats;
  const auto scale = hn::Set(floats, s.scale), inverse = hn::Set(floats, 1 / s.scale), min = hn::Set(floats, s.min);
  Sum error, q1, q2, xq;
  for_vectors(x, n, [&](int k, FloatVector v) HWY_ATTR {
    const auto q = levels(hn::Mul(hn::Add(v, min), inverse), 0, static_cast<float>(high));
    const auto d = hn::Sub(v, hn::Sub(hn::Mul(scale, q), min));
    error.add(k, hn::Mul(d, d));
    q1.add(k, q);
    q2.add(k, hn::Mul(q, q));
    xq.add(k, hn::Mul(v, q));
  });
  return {error.total(), q1.total(), q2.total(), xq.total()};
}

/// The best scale and minimum for the levels that gave `f`, those of `s`. x1: the sum of all values.
ScaleAndMin refitted(const Fit& f, double x1, int n, ScaleAndMin s) {
  const double q1 = f.q1, q2 = f.q2, xq = f.xq, determinant = n * q2 - q1 * q1;
  if (determinant <= 0) return s;
  const double scale = (n * xq - q1 * x1) / determinant, min = (q1 * xq - q2 * x1) / determinant;
  if (scale <= 0) return s;
  if (min < 0) return {static_cast<float>(xq > 0 ? xq / q2 : scale), 0};
  return {static_cast<float>(scale), static_cast<float>(min)};
}

ScaleAndMin affine_scale(const float* x, int n, int high) {
  const auto [lowest, highest] = std::minmax_element(x, x + n);
  const float min = std::max(0.0f, -*lowest), range = *highest + min;
  if (!(range > 0)) return {0, min};
  Sum values;
  for_vectors(x, n, [&](int k, FloatVector v) HWY_ATTR { values.add(k, v); });
  const double x1 = values.total();
  ScaleAndMin best{range / static_cast<float>(high), min};
  float least = fit_of(x, n, high, best).error;
  for (int step = -5; step <= 10; ++step) {
    ScaleAndMin tried{range / (static_cast<float>(high) + 0.1f * static_cast<float>(step)), min};
    Fit fit = fit_of(x, n, high, tried);
    for (int round = 0; round < 2; ++round) {
      tried = refitted(fit, x1, n, tried);
      fit = fit_of(x, n, high, tried);
      if (fit.error >= least) continue;
      best = tried;
      least = fit.error;
    }
  }
  return best;
}

float symmetric_scale(const float* x, int n, int high) {
  const Floats floats;
  float largest = 0;  // with its sign
  for (int i = 0; i < n; ++i)
    if (std::abs(x[i]) > std::abs(largest)) largest = x[i];
  if (largest == 0) return 0;
  const float low = static_cast<float>(-high - 1), top = static_cast<float>(high);
  float best = 0, least = std::numeric_limits<float>::infinity();
  for (int step = -9; step <= 9; ++step) {  // the largest value at about the lowest level, which reaches further
    const auto inverse = hn::Set(floats, (low - 0.1f * static_cast<float>(step)) / largest);
    Sum xq, qq, error;
    for_vectors(x, n, [&](int k, FloatVector v) HWY_ATTR {
      const auto q = levels(hn::Mul(v, inverse), low, top);
      xq.add(k, hn::Mul(v, q));
      qq.add(k, hn::Mul(q, q));
    });
    const float squares = qq.total();
    if (squares == 0) continue;
    const float scale = xq.total() / squares;  // the best for these levels
    for_vectors(x, n, [&](int k, FloatVector v) HWY_ATTR {
      const auto d = hn::Sub(v, hn::Mul(hn::Set(floats, scale), levels(hn::Mul(v, inverse), low, top)));
      error.add(k, hn::Mul(d, d));
    });
    const float squared = error.total();
    if (squared >= least) continue;
    best = scale;
    least = squared;
  }
  return best;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::io
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::io {

HWY_EXPORT(affine_scale);
HWY_EXPORT(symmetric_scale);

ScaleAndMin affine_scale(const float* x, int n, int high) {
  return TESSERA_DISPATCH(affine_scale)(x, n, high);
}
float symmetric_scale(const float* x, int n, int high) {
  return TESSERA_DISPATCH(symmetric_scale)(x, n, high);
}

}  // namespace tessera::io
#endif
