#include "tessera/optim/update.h"

#include <algorithm>
#include <cmath>

#include "base/cpu_dispatch.h"
#include "tessera/base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/update.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// a * b + c and c - a * b, rounded once at every level: states have the same bits on all processors.
#if HWY_TARGET == HWY_SCALAR
template <class V>
V mul_add(V a, V b, V c) {
  return hn::Set(hn::DFromV<V>(), std::fma(hn::GetLane(a), hn::GetLane(b), hn::GetLane(c)));
}
template <class V>
V neg_mul_add(V a, V b, V c) {
  return mul_add(hn::Neg(a), b, c);
}
#else
template <class V>
HWY_INLINE V mul_add(V a, V b, V c) {
  return hn::MulAdd(a, b, c);
}
template <class V>
HWY_INLINE V neg_mul_add(V a, V b, V c) {
  return hn::NegMulAdd(a, b, c);
}
#endif

/// One vector of parameters, gradients and states.
template <class V>
struct Lane {
  V p, g, s[kMaxStates];
};

template <class T>
struct Rules {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  const UpdateScalars u;
  const bool third;  // which optional states there are
  const bool second;
  const bool first;

  static V set(double x) { return hn::Set(D(), static_cast<T>(x)); }

  void adam(Lane<V>& x) const {
    const auto grad = mul_add(x.p, set(u.l2), x.g);
    auto& [m, v, largest] = x.s;
    m = mul_add(hn::Sub(grad, m), set(1 - u.beta1), m);
    v = mul_add(hn::Mul(grad, grad), set(1 - u.beta2), hn::Mul(v, set(u.beta2)));
    auto square = v;
    if (third) square = largest = hn::Max(largest, v);
    const auto denominator = mul_add(hn::Sqrt(square), set(u.inv_sqrt_correction2), set(u.eps));
    x.p = hn::Sub(hn::Mul(x.p, set(u.decay)), hn::Div(hn::Mul(m, set(u.step_size)), denominator));
  }

  void sgd(Lane<V>& x) const {
    auto step = mul_add(x.p, set(u.l2), x.g);
    if (first) {
      auto& buffer = x.s[0];
      buffer = mul_add(buffer, set(u.momentum), hn::Mul(step, set(1 - u.dampening)));
      step = u.nesterov ? mul_add(buffer, set(u.momentum), step) : buffer;
    }
    x.p = neg_mul_add(step, set(u.lr), x.p);
  }

  void lion(Lane<V>& x) const {
    auto& m = x.s[0];
    const auto blend = mul_add(m, set(u.beta1), hn::Mul(x.g, set(1 - u.beta1)));
    const auto zero = hn::Zero(D()), lr = set(u.lr);
    const auto up = hn::IfThenElseZero(hn::Gt(blend, zero), lr), down = hn::IfThenElseZero(hn::Lt(blend, zero), lr);
    x.p = hn::Add(hn::Sub(hn::Mul(x.p, set(u.decay)), up), down);
    m = mul_add(x.g, set(1 - u.beta2), hn::Mul(m, set(u.beta2)));
  }

  void rms_prop(Lane<V>& x) const {
    const auto grad = mul_add(x.p, set(u.l2), x.g);
    auto& [square, mean, buffer] = x.s;
    square = mul_add(hn::Mul(grad, grad), set(1 - u.alpha), hn::Mul(square, set(u.alpha)));
    auto variance = square;
    if (second) {
      mean = mul_add(hn::Sub(grad, mean), set(1 - u.alpha), mean);
      variance = neg_mul_add(mean, mean, square);
    }
    auto step = hn::Div(grad, hn::Add(hn::Sqrt(variance), set(u.eps)));
    if (third) step = buffer = mul_add(buffer, set(u.momentum), step);
    x.p = neg_mul_add(step, set(u.lr), x.p);
  }

  /// average * beta + (1 - beta) * value, rounded as torch's mul_ and add_ are.
  static V blend(V average, V value, double beta) { return mul_add(value, set(1 - beta), hn::Mul(average, set(beta))); }
  /// The same of the square, as addcmul_ rounds.
  static V blend_square(V average, V value, double beta) {
    return mul_add(hn::Mul(value, set(1 - beta)), value, hn::Mul(average, set(beta)));
  }

  void bnb_adam(Lane<V>& x) const {
    auto& [m, v, none] = x.s;
    m = blend(m, x.g, u.beta1);
    v = blend_square(v, x.g, u.beta2);
    const auto denominator = hn::Add(hn::Div(hn::Sqrt(v), set(u.correction2)), set(u.eps));
    x.p = hn::Add(hn::Mul(x.p, set(u.decay)), hn::Div(hn::Mul(m, set(-u.step_size)), denominator));
  }

  void ad_ema_mix(Lane<V>& x) const {
    auto& [fast, slow, v] = x.s;
    fast = blend(fast, x.g, u.beta1);
    slow = blend(slow, x.g, u.beta3);
    v = blend_square(v, x.g, u.beta2);
    const auto mixed = hn::Add(hn::Div(fast, set(u.correction1)), hn::Mul(slow, set(u.alpha)));
    const auto denominator = hn::Add(hn::Div(hn::Sqrt(v), set(u.correction2)), set(u.eps));
    x.p = neg_mul_add(hn::Div(mixed, denominator), set(u.lr), hn::Mul(x.p, set(u.decay)));
  }

  void bnb_rms_prop(Lane<V>& x) const {
    const auto grad = mul_add(x.p, set(u.l2), x.g);
    x.s[0] = blend_square(x.s[0], grad, u.alpha);
    x.p = hn::Add(x.p, hn::Div(hn::Mul(grad, set(-u.lr)), hn::Add(hn::Sqrt(x.s[0]), set(u.eps))));
  }

  void grok_adam(Lane<V>& x) const {
    auto& [m, v, slow] = x.s;
    slow = blend(slow, x.g, u.beta3);
    const auto grad = mul_add(slow, set(u.alpha), x.g);
    m = blend(m, grad, u.beta1);
    v = blend_square(v, grad, u.beta2);
    const auto denominator = hn::Add(hn::Sqrt(v), set(u.eps));
    x.p = hn::Add(hn::Mul(x.p, set(u.decay)), hn::Div(hn::Mul(m, set(-u.step_size)), denominator));
  }

  /// torch's lerp: exact at both ends.
  static V lerp(V from, V to, double weight) {
    const auto way = hn::Sub(to, from);
    return std::abs(weight) < 0.5 ? mul_add(way, set(weight), from) : neg_mul_add(way, set(1 - weight), to);
  }

  void torchao_adam(Lane<V>& x) const {
    auto& [m, v, none] = x.s;
    m = lerp(m, x.g, 1 - u.beta1);
    v = lerp(v, hn::Mul(x.g, x.g), 1 - u.beta2);
    const auto decayed = hn::Sub(x.p, hn::Mul(x.p, set(u.decay)));
    const auto denominator = hn::Add(hn::Div(hn::Sqrt(v), set(u.correction2)), set(u.eps));
    x.p = hn::Sub(decayed, hn::Div(hn::Mul(hn::Div(m, set(u.correction1)), set(u.lr)), denominator));
  }

  void schedule_free(Lane<V>& x) const {
    auto& [z, v, none] = x.s;
    auto grad = x.g;
    if (second) v = blend_square(v, grad, u.beta2);
    if (u.adaptive) grad = hn::Div(grad, hn::Add(hn::Sqrt(hn::Div(v, set(u.correction2))), set(u.eps)));
    grad = mul_add(x.p, set(u.l2), grad);
    x.p = mul_add(grad, set(u.step_size), lerp(x.p, z, u.mix));
    z = neg_mul_add(grad, set(u.lr), z);
  }

  void average(Lane<V>& x) const {
    x.s[2] = x.p;
    x.p = lerp(x.p, x.s[0], u.mix);
  }

  void adagrad(Lane<V>& x) const {
    const auto grad = mul_add(x.p, set(u.l2), x.g);
    x.s[0] = mul_add(grad, grad, x.s[0]);
    x.p = neg_mul_add(hn::Div(grad, hn::Add(hn::Sqrt(x.s[0]), set(u.eps))), set(u.lr), x.p);
  }
};

/// Elements from what is computed to what is fetched: where several streams are read, and blocks of them in turns, the
/// processor alone fetches too late.
constexpr std::int64_t kAhead = 512;

static_assert(kMaxStates == 3, "for_states() names each, so that the states of a lane are registers");
template <class F>
HWY_INLINE void for_states(const F& f) {
  f(0), f(1), f(2);
}

/// n: whole vectors. One function, for a range and for its end alike: what the compiler fuses is the same then. step:
/// by value, and what it holds, too; else a store might change it, and every vector would read it again.
template <class T, class Step>
HWY_NOINLINE void step_vectors(std::int64_t n, T* p, const T* g, const States<T> s, double gradient_factor,
                               const Step step) {
  const hn::ScalableTag<T> d;
  const auto factor = hn::Set(d, static_cast<T>(gradient_factor));
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < n; i += lanes) {
    hwy::Prefetch(g + i + kAhead);
    Lane<hn::Vec<decltype(d)>> x;
    x.p = hn::LoadU(d, p + i);
    x.g = hn::Mul(hn::LoadU(d, g + i), factor);
    for_states([&](int k) __attribute__((always_inline)) {
      if (s[k]) hwy::Prefetch(s[k] + i + kAhead);
      x.s[k] = s[k] ? hn::LoadU(d, s[k] + i) : hn::Zero(d);
    });
    step(x);
    hn::StoreU(x.p, d, p + i);
    for_states([&](int k) __attribute__((always_inline)) {
      if (s[k]) hn::StoreU(x.s[k], d, s[k] + i);
    });
  }
}

template <class T, class Step>
void for_each_vector(std::int64_t n, T* p, const T* g, const States<T>& s, double gradient_factor, const Step& step) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  const std::int64_t i = n / lanes * lanes;
  step_vectors(i, p, g, s, gradient_factor, step);
  if (i == n) return;
  // The tail goes through padded copies, so that bits do not depend on the position.
  constexpr auto kLanes = HWY_MAX_BYTES / sizeof(T);
  HWY_ALIGN T tp[kLanes] = {}, tg[kLanes] = {}, ts[kMaxStates][kLanes] = {};
  States<T> copies{};
  for (std::int64_t j = i; j < n; ++j) tp[j - i] = p[j], tg[j - i] = g[j];
  for (int k = 0; k < kMaxStates; ++k) {
    if (!s[k]) continue;
    copies[k] = ts[k];
    for (std::int64_t j = i; j < n; ++j) ts[k][j - i] = s[k][j];
  }
  step_vectors(lanes, tp, tg, copies, gradient_factor, step);
  for (std::int64_t j = i; j < n; ++j) p[j] = tp[j - i];
  for (int k = 0; k < kMaxStates; ++k)
    if (s[k])
      for (std::int64_t j = i; j < n; ++j) s[k][j] = ts[k][j - i];
}

template <class T>
void run(const Update& u, std::int64_t n, T* p, const T* g, const States<T>& s) {
  const Rules<T> rules{u, s[2] != nullptr, s[1] != nullptr, s[0] != nullptr};
  using L = Lane<typename Rules<T>::V>;
  switch (u.rule) {
    case Rule::kAdam:
      return for_each_vector(n, p, g, s, u.gradient_factor, [rules](L& x) { rules.adam(x); });
    case Rule::kSgd:
      return for_each_vector(n, p, g, s, u.gradient_factor, [rules](L& x) { rules.sgd(x); });
    case Rule::kLion:
      return for_each_vector(n, p, g, s, u.gradient_factor, [rules](L& x) { rules.lion(x); });
    case Rule::kRmsProp:
      return for_each_vector(n, p, g, s, u.gradient_factor, [rules](L& x) { rules.rms_prop(x); });
    case Rule::kAdagrad:
      return for_each_vector(n, p, g, s, u.gradient_factor, [rules](L& x) { rules.adagrad(x); });
    case Rule::kBnbAdam:
      return for_each_vector(n, p, g, s, u.gradient_factor, [rules](L& x) { rules.bnb_adam(x); });
    case Rule::kAdEmaMix:
      return for_each_vector(n, p, g, s, u.gradient_factor, [rules](L& x) { rules.ad_ema_mix(x); });
    case Rule::kBnbRmsProp:
      return for_each_vector(n, p, g, s, u.gradient_factor, [rules](L& x) { rules.bnb_rms_prop(x); });
    case Rule::kTorchaoAdam:
      return for_each_vector(n, p, g, s, u.gradient_factor, [rules](L& x) { rules.torchao_adam(x); });
    case Rule::kGrokAdam:
      return for_each_vector(n, p, g, s, u.gradient_factor, [rules](L& x) { rules.grok_adam(x); });
    case Rule::kScheduleFree:
      return for_each_vector(n, p, g, s, u.gradient_factor, [rules](L& x) { rules.schedule_free(x); });
    case Rule::kKeep:
      return for_each_vector(n, p, g, s, 1, [](L& x) { x.s[0] = x.p; });
    case Rule::kAverage:
      return for_each_vector(n, p, g, s, 1, [rules](L& x) { rules.average(x); });
    case Rule::kTakeBack:
      return for_each_vector(n, p, g, s, 1, [](L& x) { x.p = x.s[2]; });
    case Rule::kCustom:
      break;  // not for vectors
  }
}

void run_f32(const Update& u, std::int64_t n, float* p, const float* g, const States<float>& s) {
  run(u, n, p, g, s);
}
void run_f64(const Update& u, std::int64_t n, double* p, const double* g, const States<double>& s) {
  run(u, n, p, g, s);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::optim {

HWY_EXPORT(run_f32);
HWY_EXPORT(run_f64);

namespace {

/// A block of gradients at a time, which clipping's factor is put into.
void custom_range(const Update& update, std::int64_t n, float* p, const float* g, const States<float>& s) {
  constexpr std::int64_t kBlock = 2048;
  std::array<float, kBlock> scaled;
  for (std::int64_t at = 0; at < n; at += kBlock) {
    const auto count = std::min(kBlock, n - at);
    const auto factor = static_cast<float>(update.gradient_factor);
    for (std::int64_t i = 0; i < count; ++i) scaled[i] = g[at + i] * factor;
    States<float> here{};
    for (int k = 0; k < kMaxStates; ++k) here[k] = s[k] ? s[k] + at : nullptr;
    update.custom(count, p + at, scaled.data(), here);
  }
}

}  // namespace

void update_range(const Update& update, std::int64_t n, float* p, const float* g, States<float> s) {
  if (update.rule == Rule::kCustom) return custom_range(update, n, p, g, s);
  TESSERA_DISPATCH(run_f32)(update, n, p, g, s);
}
void update_range(const Update& update, std::int64_t n, double* p, const double* g, States<double> s) {
  if (update.rule == Rule::kCustom)
    throw ConfigError("an optimizer with a rule of its own works on float32 and 16-bit parameters, found float64");
  TESSERA_DISPATCH(run_f64)(update, n, p, g, s);
}

}  // namespace tessera::optim
#endif
