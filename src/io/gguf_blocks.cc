#include "io/gguf_blocks.h"

#include <c10/util/Half.h>

#include <array>
#include <cstring>
#include <utility>

#include "base/cpu_dispatch.h"

// Once for each level of instructions. Compiled without fused additions, so that values have equal bits on all of them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "io/gguf_blocks.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::io {
namespace HWY_NAMESPACE {

constexpr int kK = 256;  // elements of a "K" block

using Bytes = const std::uint8_t*;

inline float half(Bytes p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
  return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
}

void q4_0(Bytes b, float* y) {
  const float d = half(b);
#pragma omp simd
  for (int j = 0; j < 16; ++j) {
    const int q = b[2 + j];
    y[j] = d * static_cast<float>((q & 15) - 8);
    y[j + 16] = d * static_cast<float>((q >> 4) - 8);
  }
}

void q4_1(Bytes b, float* y) {
  const float d = half(b), m = half(b + 2);
#pragma omp simd
  for (int j = 0; j < 16; ++j) {
    const int q = b[4 + j];
    y[j] = d * static_cast<float>(q & 15) + m;
    y[j + 16] = d * static_cast<float>(q >> 4) + m;
  }
}

/// The 32 five-bit numbers of Q5_0 and Q5_1: 4 bytes of high bits, 16 of low ones.
inline void five_bits(Bytes p, int* q) {
  std::uint32_t high = 0;
  std::memcpy(&high, p, sizeof high);
#pragma omp simd
  for (int j = 0; j < 16; ++j) {
    const int low = p[4 + j];
    q[j] = (low & 15) | static_cast<int>((high >> j & 1) << 4);
    q[j + 16] = (low >> 4) | static_cast<int>((high >> (j + 16) & 1) << 4);
  }
}

void q5_0(Bytes b, float* y) {
  int q[32];
  five_bits(b + 2, q);
  const float d = half(b);
#pragma omp simd
  for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(q[j] - 16);
}

void q5_1(Bytes b, float* y) {
  int q[32];
  five_bits(b + 4, q);
  const float d = half(b), m = half(b + 2);
#pragma omp simd
  for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(q[j]) + m;
}

void q8_0(Bytes b, float* y) {
  const float d = half(b);
#pragma omp simd
  for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(static_cast<std::int8_t>(b[2 + j]));
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
    const Bytes low = b + 16 + low_bytes(i);
    const int scale = b[i / 16], shift = low_shift(i);
    const float d1 = d * static_cast<float>(scale & 15), m1 = dmin * static_cast<float>(scale >> 4);
#pragma omp simd
    for (int l = 0; l < 16; ++l) y[l] = d1 * static_cast<float>(low[l] >> shift & 3) - m1;
  }
}

void q3_k(Bytes b, float* y) {  // high[32], low[64], scales[12], d
  const float d = half(b + 108);
  for (int i = 0; i < kK; i += 16, y += 16) {
    const int g = i / 16;  // a scale has 4 low bits in bytes 0 to 7 and 2 high bits in bytes 8 to 11
    const int low4 = g < 8 ? b[96 + g] & 15 : b[96 + g - 8] >> 4;
    const int high2 = b[104 + g % 4] >> (g / 4 * 2) & 3;
    const float d1 = d * static_cast<float>((low4 | high2 << 4) - 32);
    const Bytes low = b + 32 + low_bytes(i), high = b + i % 32;
    const int shift = low_shift(i), bit = i / 32;
#pragma omp simd
    for (int l = 0; l < 16; ++l) y[l] = d1 * static_cast<float>((low[l] >> shift & 3) - 4 + (high[l] >> bit & 1) * 4);
  }
}

/// Scale and minimum j of 8, six bits each, in the 12 bytes of Q4_K and Q5_K.
inline std::pair<int, int> scale_and_min(Bytes s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | (s[j - 4] >> 6 << 4), s[j + 4] >> 4 | (s[j] >> 6 << 4)};
}

/// Q4_K: d, dmin, scales[12], low[128]; Q5_K: high[32] before low.
template <bool kFive>
void q45_k(Bytes b, float* y) {
  const float d = half(b), dmin = half(b + 2);
  const Bytes high = b + 16;
  for (int j = 0; j < 8; ++j, y += 32) {
    const auto [scale, min] = scale_and_min(b + 4, j);
    const float d1 = d * static_cast<float>(scale), m1 = dmin * static_cast<float>(min);
    const Bytes low = b + (kFive ? 48 : 16) + j / 2 * 32;
    const int shift = j % 2 * 4;
#pragma omp simd
    for (int l = 0; l < 32; ++l) {
      const int fifth = kFive ? (high[l] >> j & 1) << 4 : 0;
      y[l] = d1 * static_cast<float>((low[l] >> shift & 15) | fifth) - m1;
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
    const float d1 = d * static_cast<float>(static_cast<std::int8_t>(b[192 + i / 16]));
    const int shift = k / 2 * 4, high_shift = 2 * k;
#pragma omp simd
    for (int l = 0; l < 16; ++l)
      y[l] = d1 * static_cast<float>(((low[l] >> shift & 15) | (high[l] >> high_shift & 3) << 4) - 32);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::io
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::io {
namespace {

#define TESSERA_BLOCK(name)                                                  \
  HWY_EXPORT(name);                                                          \
  void name(const std::byte* block, float* y) {                              \
    TESSERA_DISPATCH(name)(reinterpret_cast<const std::uint8_t*>(block), y); \
  }
TESSERA_BLOCK(q4_0)
TESSERA_BLOCK(q4_1)
TESSERA_BLOCK(q5_0)
TESSERA_BLOCK(q5_1)
TESSERA_BLOCK(q8_0)
TESSERA_BLOCK(q2_k)
TESSERA_BLOCK(q3_k)
TESSERA_BLOCK(q4_k)
TESSERA_BLOCK(q5_k)
TESSERA_BLOCK(q6_k)
#undef TESSERA_BLOCK

using HWY_NAMESPACE::kK;

constexpr std::array<GgufBlock, 10> kBlocks = {{
    {2, "Q4_0", 32, 18, q4_0},
    {3, "Q4_1", 32, 20, q4_1},
    {6, "Q5_0", 32, 22, q5_0},
    {7, "Q5_1", 32, 24, q5_1},
    {8, "Q8_0", 32, 34, q8_0},
    {10, "Q2_K", kK, 84, q2_k},
    {11, "Q3_K", kK, 110, q3_k},
    {12, "Q4_K", kK, 144, q4_k},
    {13, "Q5_K", kK, 176, q5_k},
    {14, "Q6_K", kK, 210, q6_k},
}};

struct TypeName {
  std::uint32_t type;
  const char* name;
};
constexpr TypeName kOthers[] = {
    {0, "F32"},      {1, "F16"},    {9, "Q8_1"},    {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {30, "BF16"},    {34, "TQ1_0"}, {35, "TQ2_0"},  {39, "MXFP4"}, {40, "NVFP4"},   {41, "Q1_0"},
};

}  // namespace

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
