#include "io/gguf_blocks.h"

#include <algorithm>
#include <array>

#include "base/cpu_dispatch.h"

// Once for each level of instructions. Compiled without fused additions, so that values have equal bits on all of them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "io/gguf_blocks.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "io/gguf_grid_blocks-inl.h"
#include "io/gguf_vectors-inl.h"

/// Number, name, elements, bytes, function of each format.
#ifndef TESSERA_GGUF_BLOCKS
#define TESSERA_GGUF_BLOCKS(X)      \
  X(2, "Q4_0", 32, 18, q4_0)        \
  X(3, "Q4_1", 32, 20, q4_1)        \
  X(6, "Q5_0", 32, 22, q5_0)        \
  X(7, "Q5_1", 32, 24, q5_1)        \
  X(8, "Q8_0", 32, 34, q8_0)        \
  X(10, "Q2_K", kK, 84, q2_k)       \
  X(11, "Q3_K", kK, 110, q3_k)      \
  X(12, "Q4_K", kK, 144, q4_k)      \
  X(13, "Q5_K", kK, 176, q5_k)      \
  X(14, "Q6_K", kK, 210, q6_k)      \
  X(16, "IQ2_XXS", kK, 66, iq2_xxs) \
  X(17, "IQ2_XS", kK, 74, iq2_xs)   \
  X(18, "IQ3_XXS", kK, 98, iq3_xxs) \
  X(19, "IQ1_S", kK, 50, iq1_s)     \
  X(20, "IQ4_NL", 32, 18, iq4_nl)   \
  X(21, "IQ3_S", kK, 110, iq3_s)    \
  X(22, "IQ2_S", kK, 82, iq2_s)     \
  X(23, "IQ4_XS", kK, 136, iq4_xs)  \
  X(29, "IQ1_M", kK, 56, iq1_m)     \
  X(34, "TQ1_0", kK, 54, tq1_0)     \
  X(35, "TQ2_0", kK, 66, tq2_0)     \
  X(39, "MXFP4", 32, 17, mxfp4)
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::io {
namespace HWY_NAMESPACE {

void q4_0(Bytes b, float* y) {
  const auto d = all(half(b));
  TESSERA_EACH_VECTOR
  for (int j = 0; j < 16; j += kStep) {
    const auto q = bytes(b + 2 + j);
    put(y + j, d, hn::Sub(bits(q, 0, 4), all(8)));
    put(y + j + 16, d, hn::Sub(bits(q, 4, 4), all(8)));
  }
}

void q4_1(Bytes b, float* y) {
  const auto d = all(half(b)), m = all(half(b + 2));
  TESSERA_EACH_VECTOR
  for (int j = 0; j < 16; j += kStep) {
    const auto q = bytes(b + 4 + j);
    put(y + j, d, bits(q, 0, 4), m);
    put(y + j + 16, d, bits(q, 4, 4), m);
  }
}

/// Q5_0 and Q5_1 have four bytes of fifth bits. Those of the elements from j on.
inline Codes fifth_bits(Bytes high, int j) {
  const auto places = hn::Iota(hn::Rebind<std::int32_t, D>(), j);
  return hn::ShiftLeft<4>(hn::And(hn::Shr(all(static_cast<int>(word_at(high))), places), all(1)));
}

void q5_0(Bytes b, float* y) {
  const auto d = all(half(b));
  TESSERA_EACH_VECTOR
  for (int j = 0; j < 16; j += kStep) {
    const auto q = bytes(b + 6 + j);
    put(y + j, d, hn::Sub(hn::Or(bits(q, 0, 4), fifth_bits(b + 2, j)), all(16)));
    put(y + j + 16, d, hn::Sub(hn::Or(bits(q, 4, 4), fifth_bits(b + 2, j + 16)), all(16)));
  }
}

void q5_1(Bytes b, float* y) {
  const auto d = all(half(b)), m = all(half(b + 2));
  TESSERA_EACH_VECTOR
  for (int j = 0; j < 16; j += kStep) {
    const auto q = bytes(b + 8 + j);
    put(y + j, d, hn::Or(bits(q, 0, 4), fifth_bits(b + 4, j)), m);
    put(y + j + 16, d, hn::Or(bits(q, 4, 4), fifth_bits(b + 4, j + 16)), m);
  }
}

void q8_0(Bytes b, float* y) {
  const auto d = all(half(b));
  TESSERA_EACH_VECTOR
  for (int j = 0; j < 32; j += kStep) put(y + j, d, signed_bytes(b + 2 + j));
}

// Q2_K, Q3_K and Q6_K have a scale for each 16 elements. Of the 16 that begin at element i of Q2_K or Q3_K, the low
// bits are in the 16 bytes from low_bytes(i) on, shifted by low_shift(i).
constexpr int low_bytes(int i) {
  return i / 128 * 32 + i % 32;
}
constexpr int low_shift(int i) {
  return i % 128 / 32 * 2;
}

void q2_k(Bytes b, float* y) {  // scales[16], low[64], d, dmin
  const float d = half(b + 80), dmin = half(b + 82);
  for (int i = 0; i < kK; i += 16, y += 16) {
    const int scale = b[i / 16];
    const auto d1 = all(d * static_cast<float>(scale & 15)), m1 = all(-(dmin * static_cast<float>(scale >> 4)));
    TESSERA_EACH_VECTOR
    for (int l = 0; l < 16; l += kStep) put(y + l, d1, bits(bytes(b + 16 + low_bytes(i) + l), low_shift(i), 2), m1);
  }
}

void q3_k(Bytes b, float* y) {  // high[32], low[64], scales[12], d
  const float d = half(b + 108);
  for (int i = 0; i < kK; i += 16, y += 16) {
    const int g = i / 16;  // a scale has 4 low bits in bytes 0 to 7 and 2 high bits in bytes 8 to 11
    const int low4 = g < 8 ? b[96 + g] & 15 : b[96 + g - 8] >> 4;
    const int high2 = b[104 + g % 4] >> (g / 4 * 2) & 3;
    const auto d1 = all(d * static_cast<float>((low4 | high2 << 4) - 32));
    TESSERA_EACH_VECTOR
    for (int l = 0; l < 16; l += kStep) {
      const auto low = bits(bytes(b + 32 + low_bytes(i) + l), low_shift(i), 2);
      const auto high = hn::ShiftLeft<2>(bits(bytes(b + i % 32 + l), i / 32, 1));
      put(y + l, d1, hn::Sub(hn::Or(low, high), all(4)));
    }
  }
}

/// Q4_K: d, dmin, scales[12], low[128]; Q5_K: high[32] before low.
template <bool kFive>
inline void q45_k(Bytes b, float* y) {
  const float d = half(b), dmin = half(b + 2);
  for (int j = 0; j < 8; ++j, y += 32) {
    const auto [scale, min] = gguf_scale_and_min(b + 4, j);
    const auto d1 = all(d * static_cast<float>(scale)), m1 = all(-(dmin * static_cast<float>(min)));
    const Bytes low = b + (kFive ? 48 : 16) + j / 2 * 32;
    TESSERA_EACH_VECTOR
    for (int l = 0; l < 32; l += kStep) {
      auto q = bits(bytes(low + l), j % 2 * 4, 4);
      if constexpr (kFive) q = hn::Or(q, hn::ShiftLeft<4>(bits(bytes(b + 16 + l), j, 1)));
      put(y + l, d1, q, m1);
    }
  }
}
void q4_k(Bytes b, float* y) {
  q45_k<false>(b, y);
}
void q5_k(Bytes b, float* y) {
  q45_k<true>(b, y);
}

void q6_k(Bytes b, float* y) {  // low[128], high[64], scales[16] signed, d
  const float d = half(b + 208);
  for (int i = 0; i < kK; i += 16, y += 16) {
    const int n = i / 128, k = i % 128 / 32, l0 = i % 32;
    const Bytes low = b + n * 64 + k % 2 * 32 + l0, high = b + 128 + n * 32 + l0;
    const auto d1 = all(d * static_cast<float>(static_cast<std::int8_t>(b[192 + i / 16])));
    TESSERA_EACH_VECTOR
    for (int l = 0; l < 16; l += kStep) {
      const auto q = hn::Or(bits(bytes(low + l), k / 2 * 4, 4), hn::ShiftLeft<4>(bits(bytes(high + l), 2 * k, 2)));
      put(y + l, d1, hn::Sub(q, all(32)));
    }
  }
}

/// What 32 codes stand for, times `scale`; 16 low halves of bytes come first, then the high ones.
inline void put_by_table(float* y, const std::int8_t* values, Bytes codes, Floats scale) {
  alignas(16) std::int8_t named[32];
#if HWY_TARGET == HWY_SCALAR
  for (int j = 0; j < 16; ++j) {
    named[j] = values[codes[j] & 15];
    named[j + 16] = values[codes[j] >> 4];
  }
#else
  const hn::FixedTag<std::uint8_t, 16> d;
  const auto table = hn::LoadU(d, reinterpret_cast<Bytes>(values)), q = hn::LoadU(d, codes);
  auto* out = reinterpret_cast<std::uint8_t*>(named);
  hn::Store(hn::TableLookupBytes(table, hn::And(q, hn::Set(d, 15))), d, out);
  hn::Store(hn::TableLookupBytes(table, hn::ShiftRight<4>(q)), d, out + 16);
#endif
  TESSERA_EACH_VECTOR
  for (int j = 0; j < 32; j += kStep) put(y + j, scale, signed_bytes(reinterpret_cast<Bytes>(named) + j));
}

void iq4_nl(Bytes b, float* y) {
  put_by_table(y, kGgufIq4, b + 2, all(half(b)));
}

void iq4_xs(Bytes b, float* y) {  // d, high bits of 8 scales, their low halves, codes
  const float d = half(b);
  for (int j = 0; j < 8; ++j)
    put_by_table(y + 32 * j, kGgufIq4, b + 8 + 16 * j, all(d * static_cast<float>(gguf_iq4_xs_scale(b, j))));
}

void mxfp4(Bytes b, float* y) {
  put_by_table(y, kGgufMxfp4, b + 1, all(gguf_mxfp4_scale(b[0])));
}

/// TQ1_0: a byte is a fraction of 256, whose five digits to base 3 are the codes plus one. power = 3^n brings digit n
/// to the front.
inline Codes third(Codes byte, int power) {
  const auto fraction = hn::And(hn::Mul(byte, all(power)), all(255));
  return hn::Sub(hn::ShiftRight<8>(hn::Mul(fraction, all(3))), all(1));
}

void tq1_0(Bytes b, float* y) {  // 5 codes in each of 48 bytes, 4 in each of 4, d
  constexpr int kPowers[] = {1, 3, 9, 27, 81};
  const auto d = all(half(b + 52));
  for (int begin = 0, count = 32; begin < 48; begin += count, count = 16)
    for (int power : kPowers) {
      TESSERA_EACH_VECTOR
      for (int j = 0; j < count; j += kStep) put(y + j, d, third(bytes(b + begin + j), power));
      y += count;
    }
  std::uint8_t last[16];
  for (int i = 0; i < 16; ++i) last[i] = static_cast<std::uint8_t>(b[48 + i % 4] * kPowers[i / 4]);
  TESSERA_EACH_VECTOR
  for (int j = 0; j < 16; j += kStep) put(y + j, d, third(bytes(last + j), 1));
}

void tq2_0(Bytes b, float* y) {
  const auto d = all(half(b + 64));
  for (int i = 0; i < kK; i += 32, y += 32) {
    TESSERA_EACH_VECTOR
    for (int j = 0; j < 32; j += kStep)
      put(y + j, d, hn::Sub(bits(bytes(b + low_bytes(i) + j), low_shift(i), 2), all(1)));
  }
}

/// A block's bytes further on, which a processor that runs ahead within a page would not fetch.
template <int kBytes>
inline void fetch(Bytes block) {
  constexpr int kAhead = 4096, kLine = 64;
  for (int i = 0; i < kBytes; i += kLine) hwy::Prefetch(block + kAhead + i);
}

#define TESSERA_BLOCKS(number, text, elements, bytes, name)         \
  void name##_blocks(Bytes block, std::int64_t count, float* y) {   \
    for (; count > 0; --count, block += (bytes), y += (elements)) { \
      fetch<(bytes)>(block);                                        \
      name(block, y);                                               \
    }                                                               \
  }
TESSERA_GGUF_BLOCKS(TESSERA_BLOCKS)
#undef TESSERA_BLOCKS

}  // namespace HWY_NAMESPACE
}  // namespace tessera::io
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::io {
namespace {

#define TESSERA_BLOCKS(number, text, elements, bytes, name)                                   \
  HWY_EXPORT(name##_blocks);                                                                  \
  void name(const std::byte* blocks, std::int64_t count, float* y) {                          \
    TESSERA_DISPATCH(name##_blocks)(reinterpret_cast<const std::uint8_t*>(blocks), count, y); \
  }
TESSERA_GGUF_BLOCKS(TESSERA_BLOCKS)
#undef TESSERA_BLOCKS

using HWY_NAMESPACE::kK;

#define TESSERA_BLOCKS(number, text, elements, bytes, name) GgufBlock{number, text, elements, bytes, name},
constexpr std::array kBlocks = {TESSERA_GGUF_BLOCKS(TESSERA_BLOCKS)};
#undef TESSERA_BLOCKS

struct TypeName {
  std::uint32_t type;
  const char* name;
};
constexpr TypeName kOthers[] = {
    {0, "F32"},  {1, "F16"},  {9, "Q8_1"}, {15, "Q8_K"}, {24, "I8"},    {25, "I16"},
    {26, "I32"}, {27, "I64"}, {28, "F64"}, {30, "BF16"}, {40, "NVFP4"}, {41, "Q1_0"},
};

}  // namespace

void GgufBlock::dequantize_elements(const std::byte* blocks, std::int64_t begin, std::int64_t count, float* out) const {
  blocks += begin / elements * bytes;
  auto skip = begin % elements;
  while (count > 0) {
    if (skip == 0 && count >= elements) {
      const auto whole = count / elements;
      dequantize(blocks, whole, out);
      blocks += whole * bytes, out += whole * elements, count -= whole * elements;
      continue;
    }
    std::array<float, 256> values;
    const auto part = std::min(elements - skip, count);
    dequantize(blocks, 1, values.data());
    std::copy_n(values.data() + skip, part, out);
    blocks += bytes, out += part, count -= part, skip = 0;
  }
}

const GgufBlock* gguf_block(std::uint32_t type) {
  for (const auto& b : kBlocks)
    if (b.type == type) return &b;
  return nullptr;
}

const char* gguf_type_name(std::uint32_t type) {
  if (const auto* b = gguf_block(type)) return b->name;
  for (const auto& t : kOthers)
    if (t.type == type) return t.name;
  return "an unknown type";
}

}  // namespace tessera::io
#endif
