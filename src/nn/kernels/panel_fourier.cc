#include "nn/kernels/panel_fourier.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/panel_fourier.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "nn/kernels/panel_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::nn::kernels {
namespace HWY_NAMESPACE {

constexpr std::int64_t kComplex = kPanelTokens / 2, kLargestRadix = PanelFourier::kLargestRadix;

struct Complex {
  Vector re, im;
  HWY_INLINE Complex() {}  // compilers' own ones are not made for a level's instructions
  HWY_INLINE Complex(Vector re, Vector im) : re(re), im(im) {}
};

/// Where the parts of row i's numbers stand, in floats.
template <class T>
struct ComplexRows {
  T* at;
  std::int64_t distance, real, imaginary;
};

template <class T>
HWY_INLINE Complex load(const ComplexRows<T>& x, std::int64_t i) {
  const T* row = x.at + i * x.distance;
  return {hn::LoadU(Floats(), row + x.real), hn::LoadU(Floats(), row + x.imaginary)};
}
HWY_INLINE void store(const Complex& v, const ComplexRows<float>& y, std::int64_t i) {
  float* row = y.at + i * y.distance;
  hn::StoreU(v.re, Floats(), row + y.real);
  hn::StoreU(v.im, Floats(), row + y.imaginary);
}
/// A panel's, from number `lane` on.
template <class T>
HWY_INLINE ComplexRows<T> numbers_of(T* panel, std::int64_t lane, std::int64_t distance = 1) {
  return {panel + lane, distance * kPanelTokens, 0, kComplex};
}

HWY_INLINE Complex operator+(const Complex& a, const Complex& b) {
  return {hn::Add(a.re, b.re), hn::Add(a.im, b.im)};
}
HWY_INLINE Complex operator-(const Complex& a, const Complex& b) {
  return {hn::Sub(a.re, b.re), hn::Sub(a.im, b.im)};
}
HWY_INLINE Complex times(const Complex& a, const float* factor) {
  const auto re = hn::Set(Floats(), factor[0]), im = hn::Set(Floats(), factor[1]);
  return {hn::NegMulAdd(a.im, im, hn::Mul(a.re, re)), hn::MulAdd(a.re, im, hn::Mul(a.im, re))};
}
HWY_INLINE Complex plus_times(const Complex& sum, const Complex& a, const float* factor) {
  const auto re = hn::Set(Floats(), factor[0]), im = hn::Set(Floats(), factor[1]);
  return {hn::NegMulAdd(a.im, im, hn::MulAdd(a.re, re, sum.re)), hn::MulAdd(a.re, im, hn::MulAdd(a.im, re, sum.im))};
}

/// a times -i.
HWY_INLINE Complex turned_back(const Complex& a) {
  return {a.im, hn::Neg(a.re)};
}
HWY_INLINE Complex scaled(const Complex& a, float factor) {
  return {hn::Mul(a.re, hn::Set(Floats(), factor)), hn::Mul(a.im, hn::Set(Floats(), factor))};
}

HWY_INLINE void transform_of_four(const Complex& a0, const Complex& a1, const Complex& a2, const Complex& a3,
                                  Complex* b) {
  const Complex even = a0 + a2, odd = a1 + a3, t = a0 - a2, u = turned_back(a1 - a3);
  b[0] = even + odd;
  b[1] = t + u;
  b[2] = even - odd;
  b[3] = t - u;
}

/// The transform of `kRadix` numbers.
template <std::int64_t kRadix>
HWY_INLINE void butterfly(const Complex (&a)[kRadix], Complex (&b)[kRadix]) {
  if constexpr (kRadix == 2) {
    b[0] = a[0] + a[1];
    b[1] = a[0] - a[1];
  } else if constexpr (kRadix == 3) {
    const Complex sum = a[1] + a[2], t = a[0] - scaled(sum, 0.5F);
    const Complex u = turned_back(scaled(a[1] - a[2], 0.8660254F));  // of sin(2 pi / 3)
    b[0] = a[0] + sum;
    b[1] = t + u;
    b[2] = t - u;
  } else if constexpr (kRadix == 4) {
    transform_of_four(a[0], a[1], a[2], a[3], b);
  } else {
    static_assert(kRadix == 8);
    Complex even[4], odd[4];
    transform_of_four(a[0], a[2], a[4], a[6], even);
    transform_of_four(a[1], a[3], a[5], a[7], odd);
    const float half = 0.70710678F;  // of sqrt(1 / 2): exp(-pi i / 4) is half * (1 - i)
    odd[1] = scaled(odd[1] + turned_back(odd[1]), half);
    odd[2] = turned_back(odd[2]);
    odd[3] = scaled(turned_back(odd[3]) - odd[3], half);
#pragma GCC unroll 4
    for (std::int64_t j = 0; j < 4; ++j) {
      b[j] = even[j] + odd[j];
      b[j + 4] = even[j] - odd[j];
    }
  }
}

// Loops over the radix are unrolled, so that the numbers stay in registers.
template <std::int64_t kRadix>
void pass_of(const PanelFourier::Pass& pass, ComplexRows<const float> x, ComplexRows<float> y) {
  const std::int64_t groups = pass.groups, s = pass.stride;
  for (std::int64_t p = 0; p < groups; ++p) {
    const float* twiddles = pass.twiddles.data() + 2 * p * (kRadix - 1);
    for (std::int64_t q = 0; q < s; ++q) {
      Complex a[kRadix], b[kRadix];
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < kRadix; ++i) a[i] = load(x, q + s * (p + groups * i));
      butterfly<kRadix>(a, b);
      const std::int64_t out = q + s * kRadix * p;
      store(b[0], y, out);
#pragma GCC unroll 8
      for (std::int64_t j = 1; j < kRadix; ++j) store(times(b[j], twiddles + 2 * (j - 1)), y, out + j * s);
    }
  }
}

/// Of any radix, by the definition.
void pass_of_any(const PanelFourier::Pass& pass, ComplexRows<const float> x, ComplexRows<float> y) {
  const std::int64_t radix = pass.radix, groups = pass.groups, s = pass.stride;
  Complex a[kLargestRadix];
  for (std::int64_t p = 0; p < groups; ++p) {
    for (std::int64_t q = 0; q < s; ++q) {
      for (std::int64_t i = 0; i < radix; ++i) a[i] = load(x, q + s * (p + groups * i));
      for (std::int64_t j = 0; j < radix; ++j) {
        Complex sum = a[0];
        for (std::int64_t i = 1; i < radix; ++i) sum = plus_times(sum, a[i], pass.roots.data() + 2 * (i * j % radix));
        if (j > 0) sum = times(sum, pass.twiddles.data() + 2 * (p * (radix - 1) + j - 1));
        store(sum, y, q + s * (radix * p + j));
      }
    }
  }
}

void any_pass(const PanelFourier::Pass& pass, const ComplexRows<const float>& x, const ComplexRows<float>& y) {
  switch (pass.radix) {
    case 2:
      return pass_of<2>(pass, x, y);
    case 3:
      return pass_of<3>(pass, x, y);
    case 4:
      return pass_of<4>(pass, x, y);
    case 8:
      return pass_of<8>(pass, x, y);
    default:
      return pass_of_any(pass, x, y);
  }
}

// A vector's tokens after the other, so that what is between passes stays in the first cache. The inverse transform is
// the transform of numbers whose parts are exchanged.
void fourier_passes(const std::vector<PanelFourier::Pass>& passes, std::int64_t length, const PanelRows<const float>& x,
                    const PanelRows<float>& y, float* scratch, bool inverse) {
  for (std::int64_t lane = 0; lane < kComplex; lane += kLanes) {
    auto from = numbers_of(x.at, lane, x.distance);
    auto last = numbers_of(y.at, lane, y.distance);
    if (inverse) {
      std::swap(from.real, from.imaginary);
      std::swap(last.real, last.imaginary);
    }
    for (std::size_t i = 0; i < passes.size(); ++i) {
      float* between = scratch + static_cast<std::int64_t>(i % 2) * length * 2 * kLanes;
      const auto to = i + 1 == passes.size() ? last : ComplexRows<float>{between, 2 * kLanes, 0, kLanes};
      any_pass(passes[i], from, to);
      from = {to.at, to.distance, to.real, to.imaginary};
    }
  }
}

void spectral_products(const SpectralMatrices& m, std::int64_t first, std::int64_t last, const float* x, float* y) {
  constexpr std::int64_t kVectors = kComplex / kLanes, kAtOnce = kVectors < 2 ? kVectors : 2;
  const std::int64_t results = m.turned ? m.columns : m.rows, inputs = m.turned ? m.rows : m.columns;
  const std::int64_t of_result = m.turned ? 1 : m.columns, of_input = m.turned ? m.columns : 1;
  for (std::int64_t f = first; f < last; ++f) {
    const float* matrix = m.at + 2 * f * m.rows * m.columns;
    for (std::int64_t o = 0; o < results; ++o) {
      for (std::int64_t lane = 0; lane < kComplex; lane += kAtOnce * kLanes) {
        Complex sums[kAtOnce];
#pragma GCC unroll 2
        for (std::int64_t v = 0; v < kAtOnce; ++v) sums[v] = {hn::Zero(Floats()), hn::Zero(Floats())};
        for (std::int64_t i = 0; i < inputs; ++i) {
          const float* number = matrix + 2 * (o * of_result + i * of_input);
          const float factor[2] = {number[0], m.conjugate ? -number[1] : number[1]};
#pragma GCC unroll 2
          for (std::int64_t v = 0; v < kAtOnce; ++v)
            sums[v] = plus_times(sums[v], load(numbers_of(x, lane + v * kLanes), f * inputs + i), factor);
        }
        for (std::int64_t v = 0; v < kAtOnce; ++v) store(sums[v], numbers_of(y, lane + v * kLanes), f * results + o);
      }
    }
  }
}

void spectral_gradients(std::int64_t rows, std::int64_t columns, std::int64_t first, std::int64_t last, const float* x,
                        const float* g, float* sums) {
  for (std::int64_t f = first; f < last; ++f) {
    for (std::int64_t o = 0; o < rows; ++o) {
      for (std::int64_t i = 0; i < columns; i += 2) {
        const std::int64_t count = columns - i < 2 ? 1 : 2;
        Complex products[2];
#pragma GCC unroll 2
        for (std::int64_t k = 0; k < 2; ++k) {
          Complex sum{hn::Zero(Floats()), hn::Zero(Floats())};
          const std::int64_t column = f * columns + i + (k < count ? k : 0);  // once more, where there is no second
#pragma GCC unroll 8
          for (std::int64_t lane = 0; lane < kComplex; lane += kLanes) {
            const auto a = load(numbers_of(x, lane), column), b = load(numbers_of(g, lane), f * rows + o);
            sum.re = hn::MulAdd(a.im, b.im, hn::MulAdd(a.re, b.re, sum.re));
            sum.im = hn::NegMulAdd(a.re, b.im, hn::MulAdd(a.im, b.re, sum.im));
          }
          products[k] = sum;
        }
        float four[4];
        sums_of_four(products[0].re, products[0].im, products[1].re, products[1].im, four);
        float* out = sums + 2 * ((f * rows + o) * columns + i);
        for (std::int64_t k = 0; k < 2 * count; ++k) out[k] += four[k];
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::nn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::nn::kernels {

HWY_EXPORT(fourier_passes);
HWY_EXPORT(spectral_products);
HWY_EXPORT(spectral_gradients);

namespace {

/// Powers of two by 8 and 4, and 2 where that is all; then the other primes.
std::vector<std::int64_t> radices_of(std::int64_t length) {
  std::vector<std::int64_t> out;
  for (int twos = std::countr_zero(static_cast<std::uint64_t>(length)); twos > 0;) {
    const int taken = twos == 2 || twos == 4 ? 2 : std::min(twos, 3);
    out.push_back(std::int64_t{1} << taken);
    twos -= taken;
  }
  length >>= std::countr_zero(static_cast<std::uint64_t>(length));
  for (std::int64_t prime = 3; length > 1; prime += 2)
    for (; length % prime == 0; length /= prime) out.push_back(prime);
  return out;
}

void append_root(std::vector<float>& out, std::int64_t numerator, std::int64_t denominator) {
  const double angle = -2 * M_PI * static_cast<double>(numerator % denominator) / static_cast<double>(denominator);
  out.push_back(static_cast<float>(std::cos(angle)));
  out.push_back(static_cast<float>(std::sin(angle)));
}

}  // namespace

bool PanelFourier::takes(std::int64_t length) {
  for (std::int64_t prime = 2; prime <= kLargestRadix; ++prime)
    while (length % prime == 0) length /= prime;
  return length == 1;
}

PanelFourier::PanelFourier(std::int64_t length) : length_(length) {
  std::int64_t left = length, done = 1;
  for (const auto radix : radices_of(length)) {
    Pass pass{radix, left / radix, done, {}, {}};
    for (std::int64_t p = 0; p < pass.groups; ++p)
      for (std::int64_t j = 1; j < radix; ++j) append_root(pass.twiddles, p * j, left);
    for (std::int64_t k = 0; k < radix; ++k) append_root(pass.roots, k, radix);
    passes_.push_back(std::move(pass));
    left /= radix;
    done *= radix;
  }
}

void PanelFourier::transform(const PanelRows<const float>& x, const PanelRows<float>& y, float* scratch,
                             bool inverse) const {
  if (passes_.empty()) std::copy_n(x.at, kPanelTokens, y.at);
  TESSERA_DISPATCH(fourier_passes)(passes_, length_, x, y, scratch, inverse);
}

void spectral_products(const SpectralMatrices& matrices, std::int64_t first, std::int64_t last, const float* x,
                       float* y) {
  TESSERA_DISPATCH(spectral_products)(matrices, first, last, x, y);
}
void spectral_gradients(std::int64_t rows, std::int64_t columns, std::int64_t first, std::int64_t last, const float* x,
                        const float* g, float* sums) {
  TESSERA_DISPATCH(spectral_gradients)(rows, columns, first, last, x, g, sums);
}

}  // namespace tessera::nn::kernels
#endif
