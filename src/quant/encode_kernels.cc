#include "quant/encode_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/encode_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::quant {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using Bytes = hn::Rebind<std::uint8_t, Words>;
using FloatVector = hn::Vec<Floats>;
using WordVector = hn::Vec<Words>;

constexpr auto kMaxLanes = HWY_MAX_BYTES / sizeof(float);

float largest_magnitude(const float* x, std::int64_t numel) {
  const Floats floats;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(floats));
  const hn::RebindToSigned<Floats> integers;  // magnitudes have the order of their bits, and NaN is the largest
  const auto magnitudes = [&](const float* at) { return hn::BitCast(integers, hn::Abs(hn::LoadU(floats, at))); };
  auto first = hn::Zero(integers), second = hn::Zero(integers);
  std::int64_t i = 0;
  for (; i + 2 * lanes <= numel; i += 2 * lanes) {
    first = hn::Max(first, magnitudes(x + i));
    second = hn::Max(second, magnitudes(x + i + lanes));
  }
  std::int32_t largest = hn::GetLane(hn::MaxOfLanes(integers, hn::Max(first, second)));
  for (; i < numel; ++i) largest = std::max(largest, std::bit_cast<std::int32_t>(std::abs(x[i])));
  return std::bit_cast<float>(largest);
}

HWY_INLINE WordVector codes_of(const FourBitSteps& steps, FloatVector values, int shift) {
  const Floats floats;
  const Words words;
  auto codes = hn::Set(words, steps.first << shift);
#pragma GCC unroll 15
  for (std::size_t b = 0; b < 15; ++b) {
    const auto exceeds = hn::RebindMask(words, hn::Gt(values, hn::Set(floats, steps.bounds[b])));
    codes = hn::Xor(codes, hn::IfThenElseZero(exceeds, hn::Set(words, steps.changes[b] << shift)));
  }
  return codes;
}

HWY_INLINE void codes_of_pairs(const FourBitSteps& steps, const float* x, FloatVector factor, std::uint8_t* codes) {
  const Floats floats;
  FloatVector even, odd;
  hn::LoadInterleaved2(floats, x, even, odd);
  const auto both = hn::Or(codes_of(steps, hn::Mul(even, factor), 4), codes_of(steps, hn::Mul(odd, factor), 0));
  hn::StoreU(hn::TruncateTo(Bytes(), both), Bytes(), codes);
}

void four_bit_codes(const FourBitSteps& steps, const float* x, std::int64_t numel, float factor, std::uint8_t* codes) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  const auto factors = hn::Set(Floats(), factor);
  std::int64_t i = 0;
  for (; i + 2 * lanes <= numel; i += 2 * lanes) codes_of_pairs(steps, x + i, factors, codes + i / 2);
  if (i == numel) return;
  float rest[2 * kMaxLanes] = {};
  std::uint8_t bytes[kMaxLanes];
  std::copy(x + i, x + numel, rest);
  codes_of_pairs(steps, rest, factors, bytes);
  std::copy_n(bytes, (numel - i) / 2, codes + i / 2);
}

/// Below 2^-14 the values of float16 have equal distances, those of float32 from 0.5 to 1.
HWY_INLINE FloatVector in_half(FloatVector x) {
  const Floats floats;
  const Words words;
  const auto set = [&](std::uint32_t bits) { return hn::Set(words, bits); };
  const auto half = hn::Set(floats, 0.5f), magnitude = hn::Abs(x);
  const auto bits = hn::BitCast(words, magnitude);
  const auto even = hn::And(hn::ShiftRight<13>(bits), set(1));
  const auto rounded =
      hn::BitCast(floats, hn::And(hn::Add(hn::Add(bits, set(0xFFF)), even), set(~std::uint32_t{0x1FFF})));
  auto out =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(floats, 0x1p-14f)), hn::Sub(hn::Add(magnitude, half), half), rounded);
  out = hn::IfThenElse(hn::Ge(magnitude, hn::Set(floats, 65520.0f)), hn::Inf(floats), out);
  return hn::CopySign(hn::IfThenElse(hn::Eq(x, x), out, hn::BitCast(floats, set(0x7FC00000))), x);
}

/// The last bits of the sum are the rounded value; of NaN they are 0.
HWY_INLINE void int8_vector(const float* x, FloatVector factor, std::int8_t* codes) {
  const Floats floats;
  const auto sums = hn::Add(hn::Mul(in_half(hn::LoadU(floats, x)), factor), hn::Set(floats, 0x1.8p23f));
  hn::StoreU(hn::TruncateTo(Bytes(), hn::BitCast(Words(), sums)), Bytes(), reinterpret_cast<std::uint8_t*>(codes));
}

void int8_codes(const float* x, std::int64_t numel, float factor, std::int8_t* codes) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  const auto factors = hn::Set(Floats(), factor);
  std::int64_t i = 0;
  for (; i + lanes <= numel; i += lanes) int8_vector(x + i, factors, codes + i);
  if (i == numel) return;
  float rest[kMaxLanes] = {};
  std::int8_t bytes[kMaxLanes];
  std::copy(x + i, x + numel, rest);
  int8_vector(rest, factors, bytes);
  std::copy_n(bytes, numel - i, codes + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::quant {

HWY_EXPORT(largest_magnitude);
HWY_EXPORT(four_bit_codes);
HWY_EXPORT(int8_codes);

float largest_magnitude(const float* x, std::int64_t numel) {
  return TESSERA_DISPATCH(largest_magnitude)(x, numel);
}
void four_bit_codes(const FourBitSteps& steps, const float* x, std::int64_t numel, float factor, std::uint8_t* codes) {
  TESSERA_DISPATCH(four_bit_codes)(steps, x, numel, factor, codes);
}
void int8_codes(const float* x, std::int64_t numel, float factor, std::int8_t* codes) {
  TESSERA_DISPATCH(int8_codes)(x, numel, factor, codes);
}

}  // namespace tessera::quant
#endif
