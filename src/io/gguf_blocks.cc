#include "io/gguf_blocks.h"

#include <c10/util/Half.h>

#include <array>
#include <cstring>

namespace tessera::io {
namespace {

constexpr int kK = 256;  // elements of a "K" block

std::uint8_t u8(const std::byte* p, int i) {
  return std::to_integer<std::uint8_t>(p[i]);
}

float half(const std::byte* p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
  return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
}

void q4_0(const std::byte* b, float* y) {
  const float d = half(b);
  for (int j = 0; j < 16; ++j) {
    const int q = u8(b, 2 + j);
    y[j] = d * static_cast<float>((q & 15) - 8);
    y[j + 16] = d * static_cast<float>((q >> 4) - 8);
  }
}

void q4_1(const std::byte* b, float* y) {
  const float d = half(b), m = half(b + 2);
  for (int j = 0; j < 16; ++j) {
    const int q = u8(b, 4 + j);
    y[j] = d * static_cast<float>(q & 15) + m;
    y[j + 16] = d * static_cast<float>(q >> 4) + m;
  }
}

/// The 32 five-bit numbers of Q5_0 and Q5_1: 4 bytes of high bits, 16 of low ones.
void five_bits(const std::byte* p, int* q) {
  std::uint32_t high = 0;
  std::memcpy(&high, p, sizeof high);
  for (int j = 0; j < 16; ++j) {
    const int low = u8(p, 4 + j);
    q[j] = (low & 15) | static_cast<int>((high >> j & 1) << 4);
    q[j + 16] = (low >> 4) | static_cast<int>((high >> (j + 16) & 1) << 4);
  }
}

void q5_0(const std::byte* b, float* y) {
  int q[32];
  five_bits(b + 2, q);
  const float d = half(b);
  for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(q[j] - 16);
}

void q5_1(const std::byte* b, float* y) {
  int q[32];
  five_bits(b + 4, q);
  const float d = half(b), m = half(b + 2);
  for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(q[j]) + m;
}

void q8_0(const std::byte* b, float* y) {
  const float d = half(b);
  for (int j = 0; j < 32; ++j) y[j] = d * static_cast<float>(static_cast<std::int8_t>(u8(b, 2 + j)));
}

void q2_k(const std::byte* b, float* y) {  // scales[16], low[64], d, dmin
  const float d = half(b + 80), dmin = half(b + 82);
  for (int i = 0; i < kK; ++i) {
    const int scale = u8(b, i / 16), byte = u8(b, 16 + i / 128 * 32 + i % 32);
    const int q = byte >> (i % 128 / 32 * 2) & 3;
    y[i] = d * static_cast<float>(scale & 15) * static_cast<float>(q) - dmin * static_cast<float>(scale >> 4);
  }
}

void q3_k(const std::byte* b, float* y) {  // high[32], low[64], scales[12], d
  const float d = half(b + 108);
  for (int i = 0; i < kK; ++i) {
    const int g = i / 16;  // a scale has 4 low bits in bytes 0 to 7 and 2 high bits in bytes 8 to 11
    const int low4 = g < 8 ? u8(b, 96 + g) & 15 : u8(b, 96 + g - 8) >> 4;
    const int high2 = u8(b, 104 + g % 4) >> (g / 4 * 2) & 3;
    const int low = u8(b, 32 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    const int high = u8(b, i % 32) >> (i / 32) & 1;
    y[i] = d * static_cast<float>((low4 | high2 << 4) - 32) * static_cast<float>(low - (high ? 0 : 4));
  }
}

/// Scale and minimum j of 8, six bits each, in the 12 bytes of Q4_K and Q5_K.
std::pair<int, int> scale_and_min(const std::byte* s, int j) {
  if (j < 4) return {u8(s, j) & 63, u8(s, j + 4) & 63};
  return {(u8(s, j + 4) & 15) | (u8(s, j - 4) >> 6 << 4), u8(s, j + 4) >> 4 | (u8(s, j) >> 6 << 4)};
}

/// Q4_K: d, dmin, scales[12], low[128]; Q5_K: high[32] before low.
template <bool kFive>
void q45_k(const std::byte* b, float* y) {
  const float d = half(b), dmin = half(b + 2);
  const auto *high = b + 16, *low = b + (kFive ? 48 : 16);
  for (int j = 0; j < 8; ++j) {
    const auto [scale, min] = scale_and_min(b + 4, j);
    const float d1 = d * static_cast<float>(scale), m1 = dmin * static_cast<float>(min);
    for (int l = 0; l < 32; ++l) {
      const int byte = u8(low, j / 2 * 32 + l);
      int q = j % 2 ? byte >> 4 : byte & 15;
      if (kFive) q |= (u8(high, l) >> j & 1) << 4;
      y[j * 32 + l] = d1 * static_cast<float>(q) - m1;
    }
  }
}

void q6_k(const std::byte* b, float* y) {  // low[128], high[64], scales[16] signed, d
  const float d = half(b + 208);
  for (int i = 0; i < kK; ++i) {
    const int n = i / 128, k = i % 128 / 32, l = i % 32;
    const int low = u8(b, n * 64 + (k % 2) * 32 + l), high = u8(b, 128 + n * 32 + l);
    const int q = ((k < 2 ? low & 15 : low >> 4) | (high >> (2 * k) & 3) << 4) - 32;
    const auto scale = static_cast<std::int8_t>(u8(b, 192 + i / 16));
    y[i] = d * static_cast<float>(scale) * static_cast<float>(q);
  }
}

constexpr std::array<GgufBlock, 10> kBlocks = {{
    {2, "Q4_0", 32, 18, q4_0},
    {3, "Q4_1", 32, 20, q4_1},
    {6, "Q5_0", 32, 22, q5_0},
    {7, "Q5_1", 32, 24, q5_1},
    {8, "Q8_0", 32, 34, q8_0},
    {10, "Q2_K", kK, 84, q2_k},
    {11, "Q3_K", kK, 110, q3_k},
    {12, "Q4_K", kK, 144, q45_k<false>},
    {13, "Q5_K", kK, 176, q45_k<true>},
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
