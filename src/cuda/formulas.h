#pragma once
// Arithmetic of single elements, for kernels and for the loops on the CPU that tests hold them against
// (tests/support/host_kernels.cc). Both round in the same places, where a function's name here says where.
#include <cmath>

#if defined(__CUDACC__)
#define TESSERA_BOTH __host__ __device__ __forceinline__
#else
#define TESSERA_BOTH inline
#endif

namespace tessera::cuda {

// Rounded by themselves: nvcc does not merge them with what surrounds them, a host compiler needs -ffp-contract=off.
TESSERA_BOTH float mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
TESSERA_BOTH float add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
/// a * b + c, rounded once.
TESSERA_BOTH float mul_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}
TESSERA_BOTH float divide(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
TESSERA_BOTH float root(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}
/// To two units of the last place, for 1 <= b < 2^126.
TESSERA_BOTH float quick_divide(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

/// 1 / (1 + exp(-x)).
TESSERA_BOTH float sigmoid(float x) {
  return quick_divide(1.0f, add(1.0f, expf(x < -80.0f ? 80.0f : -x)));
}

// Each activation at a place x, as in nn/kernels/activation_kernels.cc. value() rounds by itself, so that it has the
// same bits in every kernel.

struct Silu {
  float x, s;
  TESSERA_BOTH explicit Silu(float x) : x(x), s(sigmoid(x)) {}
  TESSERA_BOTH float value() const { return mul(x, s); }
  TESSERA_BOTH float slope() const { return s + x * s * (1.0f - s); }
};

/// 0.5 (1 + tanh u) is sigmoid(2 u), which keeps its digits where tanh u is near -1.
struct GeluTanh {
  static constexpr float kTwoRoots = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;
  float x, s;
  TESSERA_BOTH explicit GeluTanh(float x)
      : x(x), s(sigmoid(mul(mul(kTwoRoots, x), mul_add(mul(kCubic, x), x, 1.0f)))) {}
  TESSERA_BOTH float value() const { return mul(x, s); }
  TESSERA_BOTH float slope() const { return s + x * s * (1.0f - s) * (kTwoRoots * (1.0f + 3.0f * kCubic * x * x)); }
};

struct Gelu {
  static constexpr float kHalfRoot = 0.7071067811865476f;  // sqrt(1 / 2)
  static constexpr float kDensity = 0.3989422804014327f;   // 1 / sqrt(2 pi)
  float x, share;
  TESSERA_BOTH explicit Gelu(float x) : x(x), share(mul(0.5f, add(1.0f, erff(mul(x, kHalfRoot))))) {}
  TESSERA_BOTH float value() const { return mul(x, share); }
  TESSERA_BOTH float slope() const { return share + x * (kDensity * expf(-0.5f * x * x)); }
};

struct QuickGelu {
  static constexpr float kSteep = 1.702f;
  float x, s;
  TESSERA_BOTH explicit QuickGelu(float x) : x(x), s(sigmoid(mul(kSteep, x))) {}
  TESSERA_BOTH float value() const { return mul(x, s); }
  TESSERA_BOTH float slope() const { return s + kSteep * x * s * (1.0f - s); }
};

struct ReluSquared {
  float x;
  TESSERA_BOTH explicit ReluSquared(float x) : x(x > 0 ? x : 0.0f) {}
  TESSERA_BOTH float value() const { return mul(x, x); }
  TESSERA_BOTH float slope() const { return 2.0f * x; }
};

/// (a, b) turned by an angle: rounded after each operation.
struct Pair {
  float a, b;
};
TESSERA_BOTH Pair turned(Pair x, float cos, float sin) {
  return {add(mul(x.a, cos), -mul(x.b, sin)), add(mul(x.b, cos), mul(x.a, sin))};
}

/// The numbers of a step of Adam, rounded to float32.
struct AdamNumbers {
  float rest1, beta2, rest2, eps, decay, step_size, inv_sqrt_correction2, l2;  // rest: 1 - beta
};
template <class Options>  // base/device_kernels.h
AdamNumbers adam_numbers(const Options& o) {
  return {static_cast<float>(1 - o.beta1),
          static_cast<float>(o.beta2),
          static_cast<float>(1 - o.beta2),
          static_cast<float>(o.eps),
          static_cast<float>(o.decay),
          static_cast<float>(o.step_size),
          static_cast<float>(o.inv_sqrt_correction2),
          static_cast<float>(o.l2)};
}
/// As optim/update.cc where the processor has a fused multiply-add.
TESSERA_BOTH void adam_step(const AdamNumbers& u, float gradient, float& p, float& m, float& v) {
  const float g = mul_add(p, u.l2, gradient);
  m = mul_add(add(g, -m), u.rest1, m);
  v = mul_add(mul(g, g), u.rest2, mul(v, u.beta2));
  const float denominator = mul_add(root(v), u.inv_sqrt_correction2, u.eps);
  p = add(mul(p, u.decay), -divide(mul(m, u.step_size), denominator));
}

/// bitsandbytes' AdamW over codes, its numbers rounded to float32 (rest: 1 - beta). step() rounds after each operation,
/// products that are added at once with their sums: as Rule::kBnbAdam in optim/update.cc. measured() is the value that
/// gets a code: x times the inverse of its block's scale, which is rounded, too.
struct BnbAdam {
  float beta1, rest1, beta2, rest2, eps, decay, rate, correction2;
  template <class Options>  // base/device_kernels.h
  explicit BnbAdam(const Options& o)
      : beta1(static_cast<float>(o.beta1)),
        rest1(static_cast<float>(1 - o.beta1)),
        beta2(static_cast<float>(o.beta2)),
        rest2(static_cast<float>(1 - o.beta2)),
        eps(static_cast<float>(o.eps)),
        decay(static_cast<float>(o.decay)),
        rate(static_cast<float>(o.rate)),
        correction2(static_cast<float>(o.correction2)) {}
  TESSERA_BOTH void step(float g, float& p, float& m, float& v) const {
    m = mul_add(g, rest1, mul(m, beta1));
    v = mul_add(mul(g, rest2), g, mul(v, beta2));
    const float denominator = add(divide(root(v), correction2), eps);
    p = add(mul(p, decay), divide(mul(m, -rate), denominator));
  }
  static TESSERA_BOTH float measure_of(float scale) { return divide(1.0f, scale); }
  static TESSERA_BOTH float measured(float x, float measure) { return mul(x, measure); }
};

/// torch's lerp, exact at both ends: rounds the difference, then the result.
struct Lerp {
  float weight, rest;  // rest: 1 - weight
  bool nearer_start;
  explicit Lerp(double weight)
      : weight(static_cast<float>(weight)), rest(static_cast<float>(1 - weight)), nearer_start(weight < 0.5) {}
  TESSERA_BOTH float operator()(float from, float to) const {
    const float way = add(to, -from);
    return nearer_start ? mul_add(way, weight, from) : mul_add(-way, rest, to);
  }
};

/// torchao's, which rounds in the same way, as Rule::kTorchaoAdam; values are divided by the scale.
struct TorchaoAdam {
  Lerp first, second;
  float eps, decay, rate, correction1, correction2;
  template <class Options>
  explicit TorchaoAdam(const Options& o)
      : first(1 - o.beta1),
        second(1 - o.beta2),
        eps(static_cast<float>(o.eps)),
        decay(static_cast<float>(o.decay)),
        rate(static_cast<float>(o.rate)),
        correction1(static_cast<float>(o.correction1)),
        correction2(static_cast<float>(o.correction2)) {}
  TESSERA_BOTH void step(float g, float& p, float& m, float& v) const {
    m = first(m, g);
    v = second(v, mul(g, g));
    const float denominator = add(divide(root(v), correction2), eps);
    p = add(add(p, -mul(p, decay)), -divide(mul(divide(m, correction1), rate), denominator));
  }
  static TESSERA_BOTH float measure_of(float scale) { return scale; }
  static TESSERA_BOTH float measured(float x, float measure) { return divide(x, measure); }
};

}  // namespace tessera::cuda
