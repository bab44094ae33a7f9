// Decoders of GGUF's types IQ1, IQ2 and IQ3: a code names a point of a grid (io/gguf_grids.h), eight values at once or
// four. Read once for each level of instructions, as io/gguf_vectors-inl.h.
#if defined(TESSERA_IO_GGUF_GRID_BLOCKS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_IO_GGUF_GRID_BLOCKS_INL_H
#undef TESSERA_IO_GGUF_GRID_BLOCKS_INL_H
#else
#define TESSERA_IO_GGUF_GRID_BLOCKS_INL_H
#endif

#include <array>
#include <limits>

#include "io/gguf_grids.h"
#include "io/gguf_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::io {
namespace HWY_NAMESPACE {

/// A point's values, up to eight of them in a vector.
template <std::size_t kWidth>
using PointTag = hn::CappedTag<float, kWidth>;

template <std::size_t kWidth>
inline hn::Vec<PointTag<kWidth>> values(const std::int8_t* p) {
  const PointTag<kWidth> d;
  return hn::ConvertTo(
      d, hn::PromoteTo(hn::RebindToSigned<decltype(d)>(), hn::LoadU(hn::Rebind<std::int8_t, decltype(d)>(), p)));
}

/// scale * point, negated where `signs` has its bit.
template <std::size_t kWidth>
inline void put_point(float* y, float scale, const std::array<std::int8_t, kWidth>& point, int signs) {
  const PointTag<kWidth> d;
  const hn::RebindToSigned<decltype(d)> ints;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  for (int j = 0; j < static_cast<int>(kWidth); j += kLanes) {
    const auto to_top = hn::Sub(hn::Set(ints, 31 - j), hn::Iota(ints, 0));
    const auto sign =
        hn::And(hn::Shl(hn::Set(ints, signs), to_top), hn::Set(ints, std::numeric_limits<std::int32_t>::min()));
    hn::StoreU(hn::Xor(hn::Mul(hn::Set(d, scale), values<kWidth>(point.data() + j)), hn::BitCast(d, sign)), d, y + j);
  }
}

/// Seven signs, and an eighth that makes their number even.
inline int even_signs(std::uint32_t seven) {
  seven &= 127;
  return static_cast<int>(seven | (static_cast<std::uint32_t>(__builtin_popcount(seven)) & 1) << 7);
}

/// (1 + 2 * code) / 2 of a scale's four bits.
inline float half_scale(int code) {
  return 0.5F + static_cast<float>(code & 15);
}

void iq2_xxs(Bytes b, float* y) {  // d; for 32 elements 4 points and a word: 4 x 7 signs, a scale
  const float d = half(b);
  for (Bytes p = b + 2; p < b + 66; p += 8) {
    const auto word = word_at(p + 4);
    const float scale = d * half_scale(static_cast<int>(word >> 28)) * 0.25F;
    for (int l = 0; l < 4; ++l, y += 8) put_point(y, scale, kGgufIq2Xxs[p[l]], even_signs(word >> 7 * l));
  }
}

void iq2_xs(Bytes b, float* y) {  // d; 32 x 9 bits of a point and 7 signs; 16 scales of four bits
  const float d = half(b);
  for (int i = 0; i < 32; ++i, y += 8) {
    const int word = b[2 + 2 * i] | b[3 + 2 * i] << 8;
    const float scale = d * half_scale(b[66 + i / 4] >> i / 2 % 2 * 4) * 0.25F;
    put_point(y, scale, kGgufIq2Xs[static_cast<std::size_t>(word & 511)],
              even_signs(static_cast<std::uint32_t>(word >> 9)));
  }
}

void iq2_s(Bytes b, float* y) {  // d; low bytes of 32 points; 32 x 8 signs; their high 2 bits; 16 scales of four bits
  const float d = half(b);
  for (int i = 0; i < 32; ++i, y += 8) {
    const int point = b[2 + i] | (b[66 + i / 4] >> i % 4 * 2 & 3) << 8;
    const float scale = d * half_scale(b[74 + i / 4] >> i / 2 % 2 * 4) * 0.25F;
    put_point(y, scale, kGgufIq2S[static_cast<std::size_t>(point)], b[34 + i]);
  }
}

void iq3_xxs(Bytes b, float* y) {  // d; 64 points; for 32 elements a word: 4 x 7 signs, a scale
  const float d = half(b);
  for (int i = 0; i < 64; ++i, y += 4) {
    const auto word = word_at(b + 66 + i / 8 * 4);
    const float scale = d * half_scale(static_cast<int>(word >> 28)) * 0.5F;
    put_point(y, scale, kGgufIq3Xxs[b[2 + i]], even_signs(word >> i % 8 / 2 * 7) >> i % 2 * 4);
  }
}

void iq3_s(Bytes b, float* y) {  // d; low bytes of 64 points; their high bits; 32 x 8 signs; 8 scales of four bits
  const float d = half(b);
  for (int i = 0; i < 64; ++i, y += 4) {
    const int point = b[2 + i] | (b[66 + i / 8] >> i % 8 & 1) << 8;
    const float scale = d * static_cast<float>(1 + 2 * (b[106 + i / 16] >> i / 8 % 2 * 4 & 15));
    put_point(y, scale, kGgufIq3S[static_cast<std::size_t>(point)], b[74 + i / 2] >> i % 2 * 4);
  }
}

/// scale * (point + 1/8), or 1/8 less.
inline void put_shifted(float* y, float scale, int point, bool less) {
  const PointTag<8> d;
  const auto added = hn::Set(d, less ? -0.125F : 0.125F);
  for (int j = 0; j < 8; j += static_cast<int>(hn::MaxLanes(d))) {
    const auto p = values<8>(kGgufIq1[static_cast<std::size_t>(point)].data() + j);
    hn::StoreU(hn::Mul(hn::Set(d, scale), hn::Add(p, added)), d, y + j);
  }
}

void iq1_s(Bytes b, float* y) {  // d; low bytes of 32 points; for four 3 high bits each, a scale of 3, a sign
  const float d = half(b);
  for (int i = 0; i < 32; ++i, y += 8) {
    const int more = b[34 + i / 4 * 2] | b[35 + i / 4 * 2] << 8;
    const float scale = d * static_cast<float>(1 + 2 * (more >> 12 & 7));
    put_shifted(y, scale, b[2 + i] | (more >> i % 4 * 3 & 7) << 8, (more >> 15) != 0);
  }
}

void iq1_m(Bytes b, float* y) {  // low bytes of 32 points; for each 3 high bits and a sign; 4 x 4 scales of 3, d
  std::uint8_t top[2] = {};      // d has the four bits on top of the words of scales
  for (int i = 0; i < 4; ++i) top[i / 2] |= static_cast<std::uint8_t>(b[49 + 2 * i] >> 4 << i % 2 * 4);
  const float d = half(top);
  for (int i = 0; i < 32; ++i, y += 8) {
    const int scales = b[48 + i / 8 * 2] | b[49 + i / 8 * 2] << 8;
    const float scale = d * static_cast<float>(1 + 2 * (scales >> i / 2 % 4 * 3 & 7));
    const int more = b[32 + i / 2] >> i % 2 * 4;
    put_shifted(y, scale, b[i] | (more & 7) << 8, (more & 8) != 0);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::io
HWY_AFTER_NAMESPACE();

#endif
