#include "nn/kernels/activation_kernels.h"

#include "base/cpu_dispatch.h"
#include "nn/kernels/float_math.h"
#include "tessera/base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/activation_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {

// Each activation at a place x: value() and slope() share what the constructor computes.

struct Silu {
  float x, divisor;
  TESSERA_INLINE explicit Silu(float x) : x(x), divisor(1.0f + fast_exp(-(x < -80.0f ? -80.0f : x))) {}
  TESSERA_INLINE float value() const { return x / divisor; }
  TESSERA_INLINE float slope() const {
    const float s = 1.0f / divisor, a = x * s;
    return s + a * (1.0f - s);
  }
};

struct GeluTanh {
  static constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;
  float x, t;
  TESSERA_INLINE explicit GeluTanh(float x) : x(x), t(fast_tanh(kRoot * (x + kCubic * x * x * x))) {}
  TESSERA_INLINE float value() const { return 0.5f * x * (1.0f + t); }
  TESSERA_INLINE float slope() const {
    const float inner = kRoot * (1.0f + 3.0f * kCubic * x * x);
    return 0.5f * ((1.0f + t) + x * (1.0f - t * t) * inner);
  }
};

struct Gelu {
  static constexpr float kHalfRoot = 0.7071067811865476f;  // sqrt(1 / 2)
  static constexpr float kDensity = 0.3989422804014327f;   // 1 / sqrt(2 pi)
  float x, share;
  TESSERA_INLINE explicit Gelu(float x) : x(x), share(0.5f * (1.0f + fast_erf(x * kHalfRoot))) {}
  TESSERA_INLINE float value() const { return x * share; }
  TESSERA_INLINE float slope() const { return share + x * (kDensity * fast_exp(-0.5f * x * x)); }
};

struct QuickGelu {
  static constexpr float kSteep = 1.702f;
  float x, s;
  TESSERA_INLINE explicit QuickGelu(float x)
      : x(x), s(1.0f / (1.0f + fast_exp(-(kSteep * x < -80.0f ? -80.0f : kSteep * x)))) {}
  TESSERA_INLINE float value() const { return x * s; }
  TESSERA_INLINE float slope() const { return s + kSteep * x * s * (1.0f - s); }
};

struct ReluSquared {
  float x;
  TESSERA_INLINE explicit ReluSquared(float x) : x(x > 0 ? x : 0.0f) {}
  TESSERA_INLINE float value() const { return x * x; }
  TESSERA_INLINE float slope() const { return 2.0f * x; }
};

template <class Kind, bool kGated, class T>
TESSERA_INLINE void value_loop(const ActivationRow<T>& row) {
  const T *x = row.x, *up = row.up;
  T* y = row.value;
#pragma omp simd
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float v = Kind(widened(x[i])).value();
    narrow_to(y[i], kGated ? v * widened(up[i]) : v);
  }
}

template <class Kind, bool kGated, bool kValue, class T>
TESSERA_INLINE void gradient_loop(const ActivationGradientRow<T>& row) {
  const T *gradient = row.gradient, *x = row.x, *up = row.up;
  T *gx = row.x_gradient, *gu = row.up_gradient, *y = row.value;
#pragma omp simd
  for (std::int64_t i = 0; i < row.n; ++i) {
    const float g = widened(gradient[i]), u = kGated ? widened(up[i]) : 1.0f;
    const Kind at(widened(x[i]));
    const float v = at.value();
    narrow_to(gx[i], (kGated ? g * u : g) * at.slope());
    if (kGated) narrow_to(gu[i], g * v);
    if (kValue) narrow_to(y[i], kGated ? v * u : v);
  }
}

template <class Kind, class T>
TESSERA_INLINE void value_row(const ActivationRow<T>& row) {
  row.up ? value_loop<Kind, true>(row) : value_loop<Kind, false>(row);
}

template <class Kind, class T>
TESSERA_INLINE void gradient_row(const ActivationGradientRow<T>& row) {
  if (row.up) return row.value ? gradient_loop<Kind, true, true>(row) : gradient_loop<Kind, true, false>(row);
  row.value ? gradient_loop<Kind, false, true>(row) : gradient_loop<Kind, false, false>(row);
}

#define TESSERA_ACTIVATION(Kind)                                                   \
  void Kind##_float(const ActivationRow<float>& row) {                             \
    value_row<Kind>(row);                                                          \
  }                                                                                \
  void Kind##_bfloat16(const ActivationRow<std::uint16_t>& row) {                  \
    value_row<Kind>(row);                                                          \
  }                                                                                \
  void Kind##_gradient_float(const ActivationGradientRow<float>& row) {            \
    gradient_row<Kind>(row);                                                       \
  }                                                                                \
  void Kind##_gradient_bfloat16(const ActivationGradientRow<std::uint16_t>& row) { \
    gradient_row<Kind>(row);                                                       \
  }
TESSERA_ACTIVATION(Silu)
TESSERA_ACTIVATION(GeluTanh)
TESSERA_ACTIVATION(Gelu)
TESSERA_ACTIVATION(QuickGelu)
TESSERA_ACTIVATION(ReluSquared)
#undef TESSERA_ACTIVATION

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::nn::kernels {

#define TESSERA_ACTIVATION(Kind)     \
  HWY_EXPORT(Kind##_float);          \
  HWY_EXPORT(Kind##_bfloat16);       \
  HWY_EXPORT(Kind##_gradient_float); \
  HWY_EXPORT(Kind##_gradient_bfloat16);
TESSERA_ACTIVATION(Silu)
TESSERA_ACTIVATION(GeluTanh)
TESSERA_ACTIVATION(Gelu)
TESSERA_ACTIVATION(QuickGelu)
TESSERA_ACTIVATION(ReluSquared)
#undef TESSERA_ACTIVATION

bool has_activation_kernel(Activation activation) {
  return activation == Activation::kSilu || activation == Activation::kGelu || activation == Activation::kGeluTanh ||
         activation == Activation::kQuickGelu || activation == Activation::kReluSquared;
}

// The version of `activation` whose name ends so.
#define TESSERA_CALL(suffix)                                 \
  switch (activation) {                                      \
    case Activation::kSilu:                                  \
      return TESSERA_DISPATCH(Silu##suffix)(row);            \
    case Activation::kGeluTanh:                              \
      return TESSERA_DISPATCH(GeluTanh##suffix)(row);        \
    case Activation::kGelu:                                  \
      return TESSERA_DISPATCH(Gelu##suffix)(row);            \
    case Activation::kQuickGelu:                             \
      return TESSERA_DISPATCH(QuickGelu##suffix)(row);       \
    case Activation::kReluSquared:                           \
      return TESSERA_DISPATCH(ReluSquared##suffix)(row);     \
    default:                                                 \
      TESSERA_CHECK(false, "no kernel for this activation"); \
  }

void activate(Activation activation, const ActivationRow<float>& row) {
  TESSERA_CALL(_float)
}
void activate(Activation activation, const ActivationRow<std::uint16_t>& row) {
  TESSERA_CALL(_bfloat16)
}
void activation_gradient(Activation activation, const ActivationGradientRow<float>& row) {
  TESSERA_CALL(_gradient_float)
}
void activation_gradient(Activation activation, const ActivationGradientRow<std::uint16_t>& row) {
  TESSERA_CALL(_gradient_bfloat16)
}
#undef TESSERA_CALL

}  // namespace tessera::nn::kernels
#endif
