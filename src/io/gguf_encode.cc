#include "io/gguf_encode.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/gguf_scales.h"

namespace tessera::io {
namespace {

void put_half(std::byte* to, float value) {
  const c10::Half half(value);
  std::memcpy(to, &half.x, sizeof half.x);
}

float as_half(float value) {
  return static_cast<float>(c10::Half(value));
}

/// To the nearest, halves away from zero, as std::lround(), which is a call; of NaN the lowest.
int level(float value, int low, int high) {
  constexpr float kAlmostHalf = 0.49999997f;  // 0.5 would take the number before it up, too
  const float kept = std::min(static_cast<float>(high), std::max(static_cast<float>(low), value));
  return static_cast<int>(kept + std::copysign(kAlmostHalf, kept));
}

void put_byte(std::byte* to, int value) {
  *to = static_cast<std::byte>(static_cast<std::uint8_t>(value));
}

void or_byte(std::byte* to, int value) {
  *to |= static_cast<std::byte>(static_cast<std::uint8_t>(value));
}

void encode_q8_0(const float* x, std::byte* b) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
  const float scale = largest / 127, inverse = scale == 0 ? 0 : 1 / scale;
  put_half(b, scale);
  for (int i = 0; i < 32; ++i) put_byte(b + 2 + i, level(x[i] * inverse, -127, 127));
}

/// 4 bytes of high bits, 16 of low ones.
void put_five_bits(const int* q, std::byte* to) {
  std::uint32_t high = 0;
  for (int i = 0; i < 32; ++i) high |= static_cast<std::uint32_t>(q[i] >> 4 & 1) << i;
  std::memcpy(to, &high, sizeof high);
  for (int i = 0; i < 16; ++i) put_byte(to + 4 + i, (q[i] & 15) | (q[i + 16] & 15) << 4);
}

void encode_q5_0(const float* x, std::byte* b) {
  const float scale = as_half(symmetric_scale(x, 32, 15));
  int q[32];
  for (int i = 0; i < 32; ++i) q[i] = (scale == 0 ? 0 : level(x[i] / scale, -16, 15)) + 16;
  put_half(b, scale);
  put_five_bits(q, b + 2);
}

void encode_q5_1(const float* x, std::byte* b) {
  const auto [lowest, highest] = std::minmax_element(x, x + 32);
  const float min = as_half(*lowest), scale = as_half((*highest - min) / 31);
  int q[32];
  for (int i = 0; i < 32; ++i) q[i] = scale == 0 ? 0 : level((x[i] - min) / scale, 0, 31);
  put_half(b, scale);
  put_half(b + 2, min);
  put_five_bits(q, b + 4);
}

/// Q4_K: d, dmin, scales[12], low[128]; Q5_K: high[32] before low.
template <bool kFive>
void encode_q45_k(const float* x, std::byte* b) {
  constexpr int kHigh = kFive ? 31 : 15;
  ScaleAndMin parts[8];
  float most_scale = 0, most_min = 0;
  for (int j = 0; j < 8; ++j) {
    parts[j] = affine_scale(x + j * 32, 32, kHigh);
    most_scale = std::max(most_scale, parts[j].scale);
    most_min = std::max(most_min, parts[j].min);
  }
  const float d = as_half(most_scale / 63), dmin = as_half(most_min / 63);
  std::memset(b, 0, kFive ? 176 : 144);
  put_half(b, d);
  put_half(b + 2, dmin);
  std::byte *scales = b + 4, *high = b + 16, *low = b + (kFive ? 48 : 16);
  for (int j = 0; j < 8; ++j) {
    const int scale = d > 0 ? level(parts[j].scale / d, 0, 63) : 0,
              min = dmin > 0 ? level(parts[j].min / dmin, 0, 63) : 0;
    if (j < 4) {
      or_byte(scales + j, scale);
      or_byte(scales + j + 4, min);
    } else {
      put_byte(scales + j + 4, (scale & 15) | (min & 15) << 4);
      or_byte(scales + j - 4, scale >> 4 << 6);
      or_byte(scales + j, min >> 4 << 6);
    }
    const float step = d * static_cast<float>(scale), begin = dmin * static_cast<float>(min);
    for (int l = 0; l < 32; ++l) {
      const int q = step > 0 ? level((x[j * 32 + l] + begin) / step, 0, kHigh) : 0;
      or_byte(low + j / 2 * 32 + l, (q & 15) << (j % 2 ? 4 : 0));
      if (kFive) or_byte(high + l, (q >> 4) << j);
    }
  }
}

/// low[128], high[64], scales[16] signed, d.
void encode_q6_k(const float* x, std::byte* b) {
  float scales[16], most = 0;
  for (int j = 0; j < 16; ++j) {
    scales[j] = symmetric_scale(x + j * 16, 16, 31);
    if (std::abs(scales[j]) > std::abs(most)) most = scales[j];
  }
  const float d = as_half(most / -128);
  std::memset(b, 0, 210);
  put_half(b + 208, d);
  for (int j = 0; j < 16; ++j) {
    const int scale = d != 0 ? level(scales[j] / d, -128, 127) : 0;
    put_byte(b + 192 + j, scale);
    const float step = d * static_cast<float>(scale);
    for (int l = 0; l < 16; ++l) {
      const int i = j * 16 + l, n = i / 128, k = i % 128 / 32, at = i % 32;
      const int q = (step != 0 ? level(x[i] / step, -32, 31) : 0) + 32;
      or_byte(b + n * 64 + (k % 2) * 32 + at, (q & 15) << (k < 2 ? 0 : 4));
      or_byte(b + 128 + n * 32 + at, (q >> 4) << (2 * k));
    }
  }
}

}  // namespace

GgufEncode gguf_encoder(std::uint32_t type) {
  switch (type) {
    case 6:
      return encode_q5_0;
    case 7:
      return encode_q5_1;
    case 8:
      return encode_q8_0;
    case 12:
      return encode_q45_k<false>;
    case 13:
      return encode_q45_k<true>;
    case 14:
      return encode_q6_k;
    default:
      return nullptr;
  }
}

}  // namespace tessera::io
