#include "quant/four_bit_panels.h"

#include "base/cpu_level.h"
#include "tessera/base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>

#define TESSERA_PANELS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define TESSERA_PANELS_INLINE TESSERA_PANELS inline __attribute__((always_inline))

namespace tessera::quant {
namespace {

constexpr std::int64_t kLanes = 16;

// Shuffles as vector types, and forms with a mask, because g++ 12 warns of the others' own definitions (its bug
// 105593).
using Words = std::int32_t __attribute__((vector_size(64)));

TESSERA_PANELS_INLINE __m512 found(__m512i places, __m512 table) {
  return _mm512_maskz_permutexvar_ps(0xFFFF, places, table);
}

TESSERA_PANELS_INLINE __m128i sixteen_bytes(const std::uint8_t* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(bytes));
}

/// Words d to d + 3 of 16 rows become four vectors with a word of each row.
TESSERA_PANELS_INLINE void columns_of_words(const std::uint8_t* const (&rows)[kLanes], std::int64_t byte,
                                            Words (&out)[4]) {
  Words part[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    auto four = _mm512_maskz_broadcast_i32x4(0x000F, sixteen_bytes(rows[r] + byte));
    four = _mm512_mask_broadcast_i32x4(four, 0x00F0, sixteen_bytes(rows[r + 4] + byte));
    four = _mm512_mask_broadcast_i32x4(four, 0x0F00, sixteen_bytes(rows[r + 8] + byte));
    part[r] = (Words)_mm512_mask_broadcast_i32x4(four, 0xF000, sixteen_bytes(rows[r + 12] + byte));
  }
#define TESSERA_QUARTERS(x, y, i, j, k, l)                                                                          \
  __builtin_shufflevector(x, y, i, j, k, l, i + 4, j + 4, k + 4, l + 4, i + 8, j + 8, k + 8, l + 8, i + 12, j + 12, \
                          k + 12, l + 12)
  const Words ab = TESSERA_QUARTERS(part[0], part[1], 0, 16, 1, 17),
              cd = TESSERA_QUARTERS(part[2], part[3], 0, 16, 1, 17),
              above = TESSERA_QUARTERS(part[0], part[1], 2, 18, 3, 19),
              below = TESSERA_QUARTERS(part[2], part[3], 2, 18, 3, 19);
  out[0] = TESSERA_QUARTERS(ab, cd, 0, 1, 16, 17);
  out[1] = TESSERA_QUARTERS(ab, cd, 2, 3, 18, 19);
  out[2] = TESSERA_QUARTERS(above, below, 0, 1, 16, 17);
  out[3] = TESSERA_QUARTERS(above, below, 2, 3, 18, 19);
#undef TESSERA_QUARTERS
}

/// Word n takes word n of the low half and word n of the high half, 16 bits each, as its own halves.
TESSERA_PANELS_INLINE __m512i halves_to_pairs() {
  Words order;
  for (int n = 0; n < 16; ++n) order[n] = (n + 16) << 16 | n;
  return (__m512i)order;
}

TESSERA_PANELS void sixteen_rows(const CodeTile& tile, std::int64_t first, const float* scales, std::uint32_t* out) {
  const __m512 table = _mm512_loadu_ps(tile.values);
  const __m512i order = halves_to_pairs();
  const std::uint8_t* rows[kLanes];
  for (std::int64_t r = 0; r < kLanes; ++r) rows[r] = tile.codes + std::min(first + r, tile.rows - 1) * tile.row_bytes;
  for (std::int64_t run = 0; run < tile.columns / kScaleRun; ++run) {
    const __m512 scale = _mm512_loadu_ps(scales + run * kPanelWidth);
    Words words[4];  // each has four bytes of each row: four pairs
    columns_of_words(rows, run * kScaleRun / 2, words);
#pragma GCC unroll 4
    for (int w = 0; w < 4; ++w) {
#pragma GCC unroll 4
      for (int byte = 0; byte < 4; ++byte, out += kPanelWidth) {
        const auto codes = (__m512i)words[w];
        // A lookup takes the four lowest bits of a place.
        const auto even = _mm512_mul_ps(found(_mm512_maskz_srli_epi32(0xFFFF, codes, 8 * byte + 4), table), scale);
        const auto odd = _mm512_mul_ps(found(_mm512_maskz_srli_epi32(0xFFFF, codes, 8 * byte), table), scale);
        const auto both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
        _mm512_storeu_si512(out, _mm512_maskz_permutexvar_epi16(0xFFFFFFFF, order, both));
      }
    }
  }
}

/// 16 values of an even row's block, then 16 of an odd row's.
TESSERA_PANELS_INLINE __m512i table_of(__m512 values, float even, float odd) {
  const auto first = _mm512_mul_ps(values, _mm512_set1_ps(even)), second = _mm512_mul_ps(values, _mm512_set1_ps(odd));
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

TESSERA_PANELS_INLINE __m512i eight_bytes(const std::uint8_t* bytes) {
  return _mm512_maskz_cvtepu8_epi64(0xFF, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
}

/// Codes of 16 columns of an even row and of the odd one after it, as places in table_of().
TESSERA_PANELS_INLINE __m512i pair_places(const std::uint8_t* even, const std::uint8_t* odd) {
  const auto both = _mm512_or_si512(eight_bytes(even), _mm512_maskz_slli_epi64(0xFF, eight_bytes(odd), 16));
  const auto places = _mm512_or_si512(_mm512_maskz_srli_epi64(0xFF, both, 4), _mm512_maskz_slli_epi64(0xFF, both, 32));
  return _mm512_or_si512(_mm512_and_si512(places, _mm512_set1_epi32(0x000F000F)), _mm512_set1_epi32(0x00100000));
}

/// 32 elements as they lie.
TESSERA_PANELS_INLINE void put_run(const std::uint8_t* codes, __m512i table, std::uint16_t* out) {
  const auto bytes = _mm512_maskz_cvtepu8_epi32(0xFFFF, sixteen_bytes(codes));
  // Halves of a word: a byte's high half, and the byte. A lookup takes five bits; the table has its 16 twice.
  const auto places =
      _mm512_or_si512(_mm512_maskz_srli_epi32(0xFFFF, bytes, 4), _mm512_maskz_slli_epi32(0xFFFF, bytes, 16));
  _mm512_storeu_si512(out, _mm512_maskz_permutexvar_epi16(0xFFFFFFFF, places, table));
}

}  // namespace

bool decodes_panels() {
  return cpu_level() >= CpuLevel::kAvx512Bf16;
}

void panel_of_columns(const CodeTile& tile, const float* scales, std::uint32_t* out) {
  for (std::int64_t n = 0; n < tile.rows; n += kLanes) sixteen_rows(tile, n, scales + n, out + n);
}

TESSERA_PANELS void panel_of_rows(const CodeTile& tile, const float* scales, std::uint32_t* out) {
  const __m512 values = _mm512_loadu_ps(tile.values);
  for (std::int64_t r = 0; r < tile.rows; r += 2, out += kPanelWidth, scales += 4) {
    const bool alone = r + 1 == tile.rows;
    const auto* even = tile.codes + r * tile.row_bytes;
    const auto* odd = alone ? even : even + tile.row_bytes;
    auto table = table_of(values, scales[0], alone ? 0.0f : scales[2]);
    for (std::int64_t k = 0; k < tile.columns / kScaleRun; ++k) {
      if (k > 0) table = table_of(values, scales[k], alone ? 0.0f : scales[2 + k]);
      for (std::int64_t half = 0; half < 2; ++half) {
        const auto from = k * kScaleRun / 2 + half * 8;
        const auto places = pair_places(even + from, odd + from);
        _mm512_storeu_si512(out + k * kScaleRun + half * kLanes,
                            _mm512_maskz_permutexvar_epi16(0xFFFFFFFF, places, table));
      }
    }
  }
}

TESSERA_PANELS void decoded_run(const CodeRun& run, std::uint16_t* out) {
  constexpr std::int64_t kRunBytes = kScaleRun / 2, kUsualBlock = 64;
  const __m512 values = _mm512_loadu_ps(run.values);
  const auto* codes = run.codes;
  const auto* scale = run.scales;
  auto* const end = out + run.numel;
  const auto ahead = run.numel / 2;  // where the next run may begin
  if (run.block == kUsualBlock && run.skipped == 0) {
    for (; end - out >= kUsualBlock; out += kUsualBlock, codes += 2 * kRunBytes, ++scale) {
      const auto table = table_of(values, *scale, *scale);
      _mm_prefetch(reinterpret_cast<const char*>(codes + ahead), _MM_HINT_T0);
      put_run(codes, table, out);
      put_run(codes + kRunBytes, table, out + kScaleRun);
    }
  }
  for (auto left = run.block - run.skipped; out < end; left = run.block, ++scale) {
    const auto table = table_of(values, *scale, *scale);
    _mm_prefetch(reinterpret_cast<const char*>(codes + ahead), _MM_HINT_T0);
    for (auto* const last = out + std::min<std::int64_t>(left, end - out); out < last;
         out += kScaleRun, codes += kRunBytes)
      put_run(codes, table, out);
  }
}

}  // namespace tessera::quant

#else

namespace tessera::quant {

bool decodes_panels() {
  return false;
}
void panel_of_columns(const CodeTile&, const float*, std::uint32_t*) {
  TESSERA_CHECK(false, "no instructions for pairs of bfloat16");
}
void panel_of_rows(const CodeTile&, const float*, std::uint32_t*) {
  TESSERA_CHECK(false, "no instructions for pairs of bfloat16");
}
void decoded_run(const CodeRun&, std::uint16_t*) {
  TESSERA_CHECK(false, "no instructions for pairs of bfloat16");
}

}  // namespace tessera::quant

#endif
