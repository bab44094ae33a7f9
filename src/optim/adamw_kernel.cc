#include "optim/adamw_kernel.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/adamw_kernel.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void adamw_f32(const AdamWStep& s, std::int64_t n, float* p, const float* g, float* m, float* v) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto one_minus_beta1 = hn::Set(d, static_cast<float>(1 - s.beta1));
  const auto beta2 = hn::Set(d, static_cast<float>(s.beta2));
  const auto one_minus_beta2 = hn::Set(d, static_cast<float>(1 - s.beta2));
  const auto eps = hn::Set(d, static_cast<float>(s.eps)), decay = hn::Set(d, static_cast<float>(s.decay));
  const auto step_size = hn::Set(d, static_cast<float>(s.step_size));
  const auto correction = hn::Set(d, static_cast<float>(s.inv_sqrt_correction2));
  auto update = [&](float* pp, const float* gg, float* mm, float* vv) {
    const auto grad = hn::LoadU(d, gg), old_m = hn::LoadU(d, mm);
    const auto new_m = hn::MulAdd(hn::Sub(grad, old_m), one_minus_beta1, old_m);
    const auto new_v = hn::MulAdd(hn::Mul(grad, grad), one_minus_beta2, hn::Mul(hn::LoadU(d, vv), beta2));
    const auto denominator = hn::MulAdd(hn::Sqrt(new_v), correction, eps);
    const auto decayed = hn::Mul(hn::LoadU(d, pp), decay);
    hn::StoreU(new_m, d, mm);
    hn::StoreU(new_v, d, vv);
    hn::StoreU(hn::Sub(decayed, hn::Div(hn::Mul(new_m, step_size), denominator)), d, pp);
  };
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) update(p + i, g + i, m + i, v + i);
  if (i == n) return;
  // The tail takes the same instructions through padded copies, so that bits do not depend on the position.
  HWY_ALIGN float tp[HWY_MAX_BYTES / sizeof(float)] = {}, tg[HWY_MAX_BYTES / sizeof(float)] = {};
  HWY_ALIGN float tm[HWY_MAX_BYTES / sizeof(float)] = {}, tv[HWY_MAX_BYTES / sizeof(float)] = {};
  for (std::int64_t j = i; j < n; ++j) tp[j - i] = p[j], tg[j - i] = g[j], tm[j - i] = m[j], tv[j - i] = v[j];
  update(tp, tg, tm, tv);
  for (std::int64_t j = i; j < n; ++j) p[j] = tp[j - i], m[j] = tm[j - i], v[j] = tv[j - i];
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::optim {

HWY_EXPORT(adamw_f32);

void adamw_range(const AdamWStep& step, std::int64_t n, float* p, const float* g, float* m, float* v) {
  HWY_DYNAMIC_DISPATCH(adamw_f32)(step, n, p, g, m, v);
}

void adamw_range(const AdamWStep& s, std::int64_t n, double* p, const double* g, double* m, double* v) {
  for (std::int64_t i = 0; i < n; ++i) {
    m[i] += (g[i] - m[i]) * (1 - s.beta1);
    v[i] = v[i] * s.beta2 + g[i] * g[i] * (1 - s.beta2);
    p[i] = p[i] * s.decay - s.step_size * m[i] / (std::sqrt(v[i]) * s.inv_sqrt_correction2 + s.eps);
  }
}

}  // namespace tessera::optim
#endif
