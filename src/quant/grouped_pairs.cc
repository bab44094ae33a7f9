#include "quant/grouped_products.h"

#include "base/cpu_level.h"
#include "tessera/base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>

#define TESSERA_PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define TESSERA_PAIRS_INLINE TESSERA_PAIRS inline __attribute__((always_inline))

namespace tessera::quant {
namespace {

// Forms with a mask, because g++ 12 warns of the others' own definitions (its bug 105593).
constexpr __mmask16 kAllLanes = 0xFFFF;
constexpr __mmask32 kAllHalves = 0xFFFFFFFF, kHighHalves = 0xAAAAAAAA;
constexpr std::int64_t kLaneCount = 16, kOfWord = 8;

/// The 16 codes as bfloat16, twice: a lookup takes five bits of a place.
TESSERA_PAIRS_INLINE __m512i code_table() {
  const auto codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return (__m512i)_mm512_cvtne2ps_pbh(codes, codes);
}
TESSERA_PAIRS_INLINE __m512bh codes_at(__m512i places, __m512i table) {
  return (__m512bh)_mm512_maskz_permutexvar_epi16(kAllHalves, places, table);
}
TESSERA_PAIRS_INLINE __m512bh all_of(const std::int32_t* pair) {
  return (__m512bh)_mm512_set1_epi32(*pair);
}
TESSERA_PAIRS_INLINE __m512i shifted_right(__m512i x, unsigned count) {
  return _mm512_maskz_srli_epi32(kAllLanes, x, count);
}
TESSERA_PAIRS_INLINE __m512i shifted_left(__m512i x, unsigned count) {
  return _mm512_maskz_slli_epi32(kAllLanes, x, count);
}
TESSERA_PAIRS_INLINE __m512 scales_of(__m256i halves, const GroupedProduct& p) {
  if (p.scale_dtype == ScaleDtype::kHalf) return _mm512_maskz_cvtph_ps(kAllLanes, halves);
  return (__m512)shifted_left(_mm512_maskz_cvtepu16_epi32(kAllLanes, halves), 16);
}
TESSERA_PAIRS_INLINE __m512 zeros_of(__m512i codes, const GroupedProduct& p) {
  if (p.zeros_less_one) codes = _mm512_add_epi32(codes, _mm512_set1_epi32(1));
  return _mm512_maskz_cvtepi32_ps(kAllLanes, _mm512_and_si512(codes, _mm512_set1_epi32(15)));
}
/// total + scale * (sum - zero * sum of x).
TESSERA_PAIRS_INLINE __m512 with_group(__m512 total, __m512 scale, __m512 zero, __m512 sum, float x) {
  return _mm512_fmadd_ps(scale, _mm512_fnmadd_ps(zero, _mm512_set1_ps(x), sum), total);
}
/// A group's words further down, which the processor does not foresee.
TESSERA_PAIRS_INLINE void fetch(const std::int32_t* words) {
  _mm_prefetch(reinterpret_cast<const char*>(words), _MM_HINT_T0);
}

/// GPTQ: a word has 8 inputs of an output. 16 Vectors outputs from `row` on; of the last vector those in the mask.
template <int Few, int Vectors>
TESSERA_PAIRS_INLINE void gptq_outputs(const GroupedProduct& p, std::int64_t row, __mmask16 mask, float* y) {
  const auto table = code_table();
  const auto mask_of = [&](int v) { return v + 1 == Vectors ? mask : kAllLanes; };
  __m512 totals[Vectors][Few] = {};
  const auto* words = p.words + row;
  const auto* x = static_cast<const std::int32_t*>(p.x);
  const auto* x_sums = p.x_sums;
  const auto* scales = static_cast<const std::uint16_t*>(p.scales) + row;
  const auto* zeros = p.zeros + row / kOfWord;
  for (std::int64_t begin = 0; begin < p.columns;
       begin += p.group_size, x_sums += Few, scales += p.rows, zeros += p.rows / kOfWord) {
    const auto end = std::min(begin + p.group_size, p.columns);
    __m512 sums[Vectors][Few] = {};
    for (auto input = begin; input < end; input += kOfWord, words += p.rows) {
      __m512i all[Vectors];
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) {
        all[v] = _mm512_maskz_loadu_epi32(mask_of(v), words + v * kLaneCount);
        fetch(words + v * kLaneCount + p.group_size / kOfWord * p.rows);
      }
#pragma GCC unroll 4
      for (int pair = 0; pair < 4; ++pair, x += Few) {
        __m512bh codes[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
          const auto both = shifted_right(all[v], 8 * pair);
          codes[v] = codes_at(_mm512_mask_blend_epi16(kHighHalves, both, shifted_left(both, 12)), table);
        }
#pragma GCC unroll 8
        for (int f = 0; f < Few; ++f) {
          const auto few = all_of(x + f);
#pragma GCC unroll 4
          for (int v = 0; v < Vectors; ++v) sums[v][f] = _mm512_dpbf16_ps(sums[v][f], codes[v], few);
        }
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const auto both = _mm512_maskz_loadu_epi32(mask_of(v) == kAllLanes ? 3 : 1, zeros + 2 * v);
      const auto word = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
      const auto place = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
      const auto zero =
          zeros_of(_mm512_maskz_srlv_epi32(kAllLanes, _mm512_maskz_permutexvar_epi32(kAllLanes, word, both), place), p);
      const auto scale = scales_of(_mm256_maskz_loadu_epi16(mask_of(v), scales + v * kLaneCount), p);
#pragma GCC unroll 8
      for (int f = 0; f < Few; ++f) totals[v][f] = with_group(totals[v][f], scale, zero, sums[v][f], x_sums[f]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v)
#pragma GCC unroll 8
    for (int f = 0; f < Few; ++f)
      _mm512_mask_storeu_ps(y + f * p.rows + row + v * kLaneCount, mask_of(v), totals[v][f]);
}

template <int Few>
TESSERA_PAIRS void gptq_pairs(const GroupedProduct& p, std::int64_t first, std::int64_t count, float* y) {
  constexpr int kVectors = Few <= 4 ? 4 : 2;  // as many sums as registers hold
  constexpr std::int64_t kStep = kVectors * kLaneCount;
  const auto last = first + count;
  for (; first + kStep <= last; first += kStep) gptq_outputs<Few, kVectors>(p, first, kAllLanes, y);
  for (; first < last; first += kLaneCount)
    gptq_outputs<Few, 1>(p, first, first + kLaneCount <= last ? kAllLanes : 0xFF, y);
}

/// AWQ: a word has 8 outputs of an input. Of 16 words, or those in the mask, `Places` places from First on:
/// sums[place][f], lane by word.
template <int Few, int First, int Places>
TESSERA_PAIRS_INLINE void awq_sums(const GroupedProduct& p, const std::int32_t* words, std::int64_t begin,
                                   std::int64_t end, __mmask16 mask, __m512 (&sums)[Places][Few]) {
  const auto table = code_table();
  const auto apart = p.rows / kOfWord;
  const auto* x = static_cast<const std::int32_t*>(p.x) + begin / 2 * Few;
  for (auto input = begin; input < end; input += 2, words += 2 * apart, x += Few) {
    const auto even = _mm512_maskz_loadu_epi32(mask, words), odd = _mm512_maskz_loadu_epi32(mask, words + apart);
    if (First == 0)
      for (const auto* line : {words + p.group_size * apart, words + (p.group_size + 1) * apart})
        fetch(line), fetch(line + kLaneCount - 1);
#pragma GCC unroll 8
    for (int i = 0; i < Places; ++i) {
      const unsigned shift = 4 * (First + i);
      const auto low = shifted_right(even, shift);
      const auto high = shift < 16 ? shifted_left(odd, 16 - shift) : shifted_right(odd, shift - 16);
      const auto codes = codes_at(_mm512_mask_blend_epi16(kHighHalves, low, high), table);
#pragma GCC unroll 8
      for (int f = 0; f < Few; ++f) sums[i][f] = _mm512_dpbf16_ps(sums[i][f], codes, all_of(x + f));
    }
  }
}

/// 8 outputs of each of 16 words, lane by word.
template <int Few>
using WordTotals = __m512[kOfWord][Few];

/// One group's. scales, zeros: of the first word.
template <int Few, int First, int Places>
TESSERA_PAIRS_INLINE void add_awq_group(const GroupedProduct& p, const std::int32_t* words, std::int64_t begin,
                                        std::int64_t end, const std::uint16_t* scales, const std::int32_t* zeros,
                                        const float* x_sums, __mmask16 mask, WordTotals<Few>& totals) {
  __m512 sums[Places][Few] = {};
  awq_sums<Few, First, Places>(p, words, begin, end, mask, sums);
  const auto zero_words = _mm512_maskz_loadu_epi32(mask, zeros);
  const auto lines = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);  // pairs of scales
#pragma GCC unroll 8
  for (int i = 0; i < Places; ++i) {
    const int place = First + i, pair = place % 4;  // of outputs 2 pair and 2 pair + 1
    const auto both = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, lines, scales + 2 * pair, 4);
    const auto scale = scales_of(_mm512_maskz_cvtepi32_epi16(kAllLanes, place < 4 ? both : shifted_right(both, 16)), p);
    const auto zero = zeros_of(shifted_right(zero_words, static_cast<unsigned>(4 * place)), p);
#pragma GCC unroll 8
    for (int f = 0; f < Few; ++f) totals[place][f] = with_group(totals[place][f], scale, zero, sums[i][f], x_sums[f]);
  }
  if constexpr (First + Places < kOfWord)
    add_awq_group<Few, First + Places, Places>(p, words, begin, end, scales, zeros, x_sums, mask, totals);
}

template <int Few>
TESSERA_PAIRS void awq_pairs(const GroupedProduct& p, std::int64_t first, std::int64_t count, float* y) {
  constexpr int kPlaces = Few <= 2 ? 8 : Few <= 4 ? 4 : 2;  // as many sums as registers hold
  constexpr std::int64_t kStep = kLaneCount * kOfWord;
  const auto apart = p.rows / kOfWord, last = first + count;
  for (; first < last; first += kStep) {
    const auto found = std::min(kStep, last - first) / kOfWord;
    const auto mask = static_cast<__mmask16>((1U << found) - 1);
    const auto* x_sums = p.x_sums;
    const auto* scales = static_cast<const std::uint16_t*>(p.scales) + first;
    const auto* zeros = p.zeros + first / kOfWord;
    WordTotals<Few> totals = {};
    for (std::int64_t begin = 0; begin < p.columns;
         begin += p.group_size, x_sums += Few, scales += p.rows, zeros += apart)
      add_awq_group<Few, 0, kPlaces>(p, p.words + begin * apart + first / kOfWord, begin,
                                     std::min(begin + p.group_size, p.columns), scales, zeros, x_sums, mask, totals);
    for (int place = 0; place < kOfWord; ++place) {
      const int output = place < 4 ? 2 * place : 2 * place - 7;
      for (int f = 0; f < Few; ++f)
        for (int word = 0; word < found; ++word)
          y[f * p.rows + first + word * kOfWord + output] = totals[place][f][word];
    }
  }
}

}  // namespace

bool has_grouped_pair_products() {
  return cpu_level() >= CpuLevel::kAvx512Bf16;
}

void grouped_pair_product(const GroupedProduct& p, std::int64_t first, std::int64_t count, float* y) {
  with_grouped_rows(p.few, [&](auto few) {
    (p.layout == WordLayout::kGptq ? gptq_pairs<few()> : awq_pairs<few()>)(p, first, count, y);
  });
}

}  // namespace tessera::quant

#else

namespace tessera::quant {

bool has_grouped_pair_products() {
  return false;
}
void grouped_pair_product(const GroupedProduct&, std::int64_t, std::int64_t, float*) {
  TESSERA_CHECK(false, "no instructions for pairs of bfloat16");
}

}  // namespace tessera::quant

#endif
