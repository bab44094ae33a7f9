// What the decoders of GGUF's blocks share. Read once for each level of instructions that Highway compiles, hence
// another guard than #pragma once.
#if defined(TESSERA_IO_GGUF_VECTORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_IO_GGUF_VECTORS_INL_H
#undef TESSERA_IO_GGUF_VECTORS_INL_H
#else
#define TESSERA_IO_GGUF_VECTORS_INL_H
#endif

#include <c10/util/Half.h>
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

// At the plain level a vector is one number: there g++ makes vectors of these loops when it is told to, clang unasked.
#ifndef TESSERA_EACH_VECTOR
#if defined(__clang__)
#define TESSERA_EACH_VECTOR
#else
#define TESSERA_EACH_VECTOR _Pragma("omp simd")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::io {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kK = 256;  // elements of a "K" block

using Bytes = const std::uint8_t*;
using D = hn::CappedTag<float, 16>;
using Floats = hn::Vec<D>;
using Codes = hn::Vec<hn::Rebind<std::int32_t, D>>;

constexpr int kStep = static_cast<int>(hn::MaxLanes(D()));  // divides 16

inline float half(Bytes p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SSE2
  // Highway makes numbers of infinities and NaN there.
  return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
#else
  const hn::CappedTag<float, 4> floats;
  const auto all = hn::Set(hn::Rebind<std::uint16_t, decltype(floats)>(), bits);
  return hn::GetLane(hn::PromoteTo(floats, hn::BitCast(hn::Rebind<hwy::float16_t, decltype(floats)>(), all)));
#endif
}

inline std::uint32_t word_at(Bytes p) {
  std::uint32_t word = 0;
  std::memcpy(&word, p, sizeof word);
  return word;
}

inline Floats all(float x) {
  return hn::Set(D(), x);
}
inline Codes all(int x) {
  return hn::Set(hn::Rebind<std::int32_t, D>(), x);
}
inline Codes bytes(Bytes p) {
  return hn::PromoteTo(hn::Rebind<std::int32_t, D>(), hn::LoadU(hn::Rebind<std::uint8_t, D>(), p));
}
inline Codes signed_bytes(Bytes p) {
  return hn::PromoteTo(hn::Rebind<std::int32_t, D>(),
                       hn::LoadU(hn::Rebind<std::int8_t, D>(), reinterpret_cast<const std::int8_t*>(p)));
}
/// `count` bits from bit `shift` on.
inline Codes bits(Codes x, int shift, int count) {
  return hn::And(hn::ShiftRightSame(x, shift), all((1 << count) - 1));
}
inline void put(float* y, Floats scale, Codes q) {
  hn::StoreU(hn::Mul(scale, hn::ConvertTo(D(), q)), D(), y);
}
inline void put(float* y, Floats scale, Codes q, Floats added) {
  hn::StoreU(hn::Add(hn::Mul(scale, hn::ConvertTo(D(), q)), added), D(), y);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::io
HWY_AFTER_NAMESPACE();

#endif
