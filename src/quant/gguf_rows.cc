#include "quant/gguf_rows.h"

#include "base/cpu_level.h"
#include "io/gguf_blocks.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#define TESSERA_ROWS __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512bf16")))
#define TESSERA_ROWS_INLINE TESSERA_ROWS inline __attribute__((always_inline))

namespace tessera::quant {
namespace {

// Forms with a mask, because g++ 12 warns of the others' own definitions (its bug 105593).
constexpr __mmask16 kAll16 = 0xFFFF;
constexpr __mmask32 kAll32 = 0xFFFFFFFF;

using Bytes = const std::uint8_t*;

TESSERA_ROWS_INLINE float half(Bytes p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

TESSERA_ROWS_INLINE __m512 counted_from(float first) {
  const auto places = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_add_ps(places, _mm512_set1_ps(first));
}
TESSERA_ROWS_INLINE __m512i narrow(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}
/// scale * (code + first), 16 codes twice, or 32 of them.
TESSERA_ROWS_INLINE __m512i table_of(float scale, float first, bool five_bits) {
  const auto low = _mm512_mul_ps(_mm512_set1_ps(scale), counted_from(first));
  return narrow(low, five_bits ? _mm512_mul_ps(_mm512_set1_ps(scale), counted_from(first + 16)) : low);
}
/// scale * code + added.
TESSERA_ROWS_INLINE __m512i table_with(float scale, float added, bool five_bits) {
  const auto all = _mm512_set1_ps(added);
  const auto low = _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(scale), counted_from(0)), all);
  if (!five_bits) return narrow(low, low);
  return narrow(low, _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(scale), counted_from(16)), all));
}

/// scale * byte, of 16 signed bytes.
TESSERA_ROWS_INLINE __m512 scaled_bytes(__m512 scale, const void* bytes) {
  const auto sixteen = _mm_loadu_si128(static_cast<const __m128i_u*>(bytes));
  return _mm512_mul_ps(scale, _mm512_maskz_cvtepi32_ps(kAll16, _mm512_maskz_cvtepi8_epi32(kAll16, sixteen)));
}
/// scale * values[code], 16 codes twice.
TESSERA_ROWS_INLINE __m512i table_of_values(float scale, const std::int8_t* values) {
  const auto scaled = scaled_bytes(_mm512_set1_ps(scale), values);
  return narrow(scaled, scaled);
}

/// The last five bits of each place count.
TESSERA_ROWS_INLINE void put(std::uint16_t* out, __m512i places, __m512i table) {
  _mm512_storeu_si512(out, _mm512_maskz_permutexvar_epi16(kAll32, places, table));
}

TESSERA_ROWS_INLINE __m512i words(Bytes bytes) {
  return _mm512_maskz_cvtepu8_epi16(kAll32, _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(bytes)));
}
TESSERA_ROWS_INLINE __m512i four_bits(__m512i x) {
  return _mm512_and_si512(x, _mm512_set1_epi16(15));
}
TESSERA_ROWS_INLINE __m512i with_fifth_bits(__m512i x, __mmask32 bits) {
  return _mm512_mask_add_epi16(x, bits, x, _mm512_set1_epi16(16));
}
/// Of a block of 32: 16 low halves of bytes, then the high ones.
TESSERA_ROWS_INLINE __m512i halves(Bytes bytes) {
  const auto sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(bytes));
  const auto twice = _mm512_maskz_cvtepu8_epi16(kAll32, _mm256_broadcastsi128_si256(sixteen));
  return _mm512_mask_srli_epi16(twice, 0xFFFF0000, twice, 4);
}
TESSERA_ROWS_INLINE __mmask32 mask_at(Bytes bytes) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

struct Q4_0 {
  static constexpr int kElements = 32, kBytes = 18;
  TESSERA_ROWS_INLINE static void read(Bytes b, std::uint16_t* y) {
    put(y, halves(b + 2), table_of(half(b), -8, false));
  }
};
struct Q4_1 {
  static constexpr int kElements = 32, kBytes = 20;
  TESSERA_ROWS_INLINE static void read(Bytes b, std::uint16_t* y) {
    put(y, halves(b + 4), table_with(half(b), half(b + 2), false));
  }
};
struct Q5_0 {
  static constexpr int kElements = 32, kBytes = 22;
  TESSERA_ROWS_INLINE static void read(Bytes b, std::uint16_t* y) {
    put(y, with_fifth_bits(four_bits(halves(b + 6)), mask_at(b + 2)), table_of(half(b), -16, true));
  }
};
struct Q5_1 {
  static constexpr int kElements = 32, kBytes = 24;
  TESSERA_ROWS_INLINE static void read(Bytes b, std::uint16_t* y) {
    put(y, with_fifth_bits(four_bits(halves(b + 8)), mask_at(b + 4)), table_with(half(b), half(b + 2), true));
  }
};
struct Q8_0 {
  static constexpr int kElements = 32, kBytes = 34;
  TESSERA_ROWS_INLINE static void read(Bytes b, std::uint16_t* y) {
    const auto scale = _mm512_set1_ps(half(b));
    _mm512_storeu_si512(y, narrow(scaled_bytes(scale, b + 2), scaled_bytes(scale, b + 18)));
  }
};

/// Q4_K: d, dmin, scales[12], low[128]; Q5_K: high[32] before low.
template <bool kFive>
struct Q45_K {
  static constexpr int kElements = 256, kBytes = kFive ? 176 : 144;
  TESSERA_ROWS_INLINE static void read(Bytes b, std::uint16_t* y) {
    const float d = half(b), dmin = half(b + 2);
    const auto high = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(b + 16));
    for (int j = 0; j < 8; ++j, y += 32) {
      const auto [scale, min] = io::gguf_scale_and_min(b + 4, j);
      const auto table = table_with(d * static_cast<float>(scale), -(dmin * static_cast<float>(min)), kFive);
      auto places = words(b + (kFive ? 48 : 16) + j / 2 * 32);
      if (j % 2 == 1) places = _mm512_maskz_srli_epi16(kAll32, places, 4);
      if (kFive)
        places = with_fifth_bits(four_bits(places),
                                 _mm256_test_epi8_mask(high, _mm256_set1_epi8(static_cast<char>(1 << j))));
      put(y, places, table);
    }
  }
};

struct Q6_K {  // low[128], high[64], scales[16] signed, d
  static constexpr int kElements = 256, kBytes = 210;
  TESSERA_ROWS_INLINE static __m512 sixteen(__m256i codes, float scale) {
    const auto wide = _mm512_maskz_cvtepi16_epi32(kAll16, codes);
    return _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_maskz_cvtepi32_ps(kAll16, wide));
  }
  TESSERA_ROWS_INLINE static void read(Bytes b, std::uint16_t* y) {
    const float d = half(b + 208);
    for (int i = 0; i < kElements; i += 32, y += 32) {
      const int n = i / 128, k = i % 128 / 32;
      auto low = words(b + n * 64 + k % 2 * 32), high = words(b + 128 + n * 32);
      if (k >= 2) low = _mm512_maskz_srli_epi16(kAll32, low, 4);
      high = _mm512_maskz_srl_epi16(kAll32, high, _mm_cvtsi32_si128(2 * k));
      high = _mm512_maskz_slli_epi16(kAll32, _mm512_and_si512(high, _mm512_set1_epi16(3)), 4);
      const auto codes = _mm512_maskz_sub_epi16(kAll32, _mm512_or_si512(four_bits(low), high), _mm512_set1_epi16(32));
      const auto* scales = reinterpret_cast<const std::int8_t*>(b + 192 + i / 16);
      const auto first = sixteen(__builtin_shufflevector(codes, codes, 0, 1, 2, 3), d * static_cast<float>(scales[0]));
      const auto second = sixteen(__builtin_shufflevector(codes, codes, 4, 5, 6, 7), d * static_cast<float>(scales[1]));
      _mm512_storeu_si512(y, narrow(first, second));
    }
  }
};

struct Iq4_Nl {
  static constexpr int kElements = 32, kBytes = 18;
  TESSERA_ROWS_INLINE static void read(Bytes b, std::uint16_t* y) {
    put(y, halves(b + 2), table_of_values(half(b), io::kGgufIq4));
  }
};
struct Iq4_Xs {
  static constexpr int kElements = 256, kBytes = 136;
  TESSERA_ROWS_INLINE static void read(Bytes b, std::uint16_t* y) {
    const float d = half(b);
    for (int j = 0; j < 8; ++j, y += 32)
      put(y, halves(b + 8 + 16 * j),
          table_of_values(d * static_cast<float>(io::gguf_iq4_xs_scale(b, j)), io::kGgufIq4));
  }
};
struct Mxfp4 {
  static constexpr int kElements = 32, kBytes = 17;
  TESSERA_ROWS_INLINE static void read(Bytes b, std::uint16_t* y) {
    put(y, halves(b + 1), table_of_values(io::gguf_mxfp4_scale(b[0]), io::kGgufMxfp4));
  }
};

template <class Block>
TESSERA_ROWS void read_blocks(const std::byte* blocks, std::int64_t count, std::uint16_t* y) {
  constexpr int kAhead = 4096, kLine = 64;  // beyond the page within which a processor runs ahead
  const auto* b = reinterpret_cast<Bytes>(blocks);
  for (; count > 0; --count, b += Block::kBytes, y += Block::kElements) {
    for (int i = 0; i < Block::kBytes; i += kLine)
      _mm_prefetch(reinterpret_cast<const char*>(b) + kAhead + i, _MM_HINT_T0);
    Block::read(b, y);
  }
}

}  // namespace

GgufRows gguf_rows(std::uint32_t type) {
  if (cpu_level() < CpuLevel::kAvx512Bf16) return nullptr;
  switch (type) {
    case 2:
      return read_blocks<Q4_0>;
    case 3:
      return read_blocks<Q4_1>;
    case 6:
      return read_blocks<Q5_0>;
    case 7:
      return read_blocks<Q5_1>;
    case 8:
      return read_blocks<Q8_0>;
    case 12:
      return read_blocks<Q45_K<false>>;
    case 13:
      return read_blocks<Q45_K<true>>;
    case 14:
      return read_blocks<Q6_K>;
    case 20:
      return read_blocks<Iq4_Nl>;
    case 23:
      return read_blocks<Iq4_Xs>;
    case 39:
      return read_blocks<Mxfp4>;
    default:
      return nullptr;
  }
}

}  // namespace tessera::quant

#else

namespace tessera::quant {

GgufRows gguf_rows(std::uint32_t) {
  return nullptr;
}

}  // namespace tessera::quant

#endif
