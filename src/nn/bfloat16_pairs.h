#pragma once
// What loops over pairs of bfloat16 share: AVX-512's VDPBF16PS adds to each float32 the products of a pair with a pair.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define TESSERA_PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define TESSERA_PAIRS_INLINE TESSERA_PAIRS inline __attribute__((always_inline))

namespace tessera::nn::kernels {

constexpr std::int64_t kFloats = 16, kPairs = 32;  // in a vector
constexpr __mmask16 kAll = 0xFFFF;

/// A mask of the first n of a vector's 16.
inline __mmask16 first_lanes(std::int64_t n) {
  return n >= kFloats ? kAll : static_cast<__mmask16>((1u << n) - 1);
}

TESSERA_PAIRS inline __m512bh as_pairs(__m512i v) {
  return (__m512bh)v;
}

// The forms with a mask, because g++ 12 warns of the others' own definitions (its bug 105593).
TESSERA_PAIRS inline __m512i low_halves(__mmask16 mask, const std::uint16_t* x) {
  return _mm512_maskz_cvtepu16_epi32(mask, _mm256_maskz_loadu_epi16(mask, x));
}
TESSERA_PAIRS inline __m512i high_halves(__mmask16 mask, const std::uint16_t* x) {
  return _mm512_maskz_slli_epi32(mask, low_halves(mask, x), 16);
}

/// The same pair in every place.
TESSERA_PAIRS inline __m512bh pair_everywhere(const std::uint16_t* x) {
  int pair;
  std::memcpy(&pair, x, sizeof pair);
  return as_pairs(_mm512_set1_epi32(pair));
}

}  // namespace tessera::nn::kernels
#endif
