#include "quant/block_codes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/cpu_level.h"
#include "quant/encode_kernels.h"

namespace tessera::quant {
namespace {

FourBitSteps make_steps(FourBitType type) {
  const auto& values = four_bit_values(type);
  std::array<std::uint8_t, 16> order{};
  for (std::uint8_t i = 0; i < 16; ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::uint8_t a, std::uint8_t b) { return values[a] < values[b] || (values[a] == values[b] && a < b); });
  FourBitSteps steps;
  steps.first = order[0];
  for (std::size_t i = 0; i < 15; ++i) {
    const double low = values[order[i]], high = values[order[i + 1]];
    steps.bounds[i] = static_cast<float>((low + high) / 2);
    steps.changes[i] = static_cast<std::uint32_t>(order[i] ^ order[i + 1]);
  }
  return steps;
}

const FourBitSteps& steps_of(FourBitType type) {
  static const FourBitSteps kNf4 = make_steps(FourBitType::kNf4), kFp4 = make_steps(FourBitType::kFp4);
  return type == FourBitType::kNf4 ? kNf4 : kFp4;
}

constexpr float kLeastScale = 1e-38f;  // that bitsandbytes divides by

/// What the two codes of a byte stand for.
using Pairs = std::array<std::array<float, 2>, 256>;
const Pairs& value_pairs(FourBitType type) {
  const auto make = [](FourBitType t) {
    Pairs pairs{};
    for (std::size_t byte = 0; byte < 256; ++byte)
      pairs[byte] = {four_bit_values(t)[byte >> 4], four_bit_values(t)[byte & 15]};
    return pairs;
  };
  static const Pairs kNf4 = make(FourBitType::kNf4), kFp4 = make(FourBitType::kFp4);
  return type == FourBitType::kNf4 ? kNf4 : kFp4;
}

constexpr std::int64_t kWide = 16;  // elements at a time

/// `numel` elements from the beginning of a byte, a multiple of kWide, of one block: the table stays in registers.
using DecodeWide = void (*)(const float* values, const std::uint8_t* codes, std::int64_t numel, float scale,
                            float* out);

#if defined(__x86_64__)
/// Of eight bytes.
__attribute__((target("sse4.1"))) inline __m128i sixteen_codes(const std::uint8_t* codes) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)), low_half = _mm_set1_epi8(15);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), low_half), low = _mm_and_si128(bytes, low_half);
  return _mm_unpacklo_epi8(high, low);
}

__attribute__((target("avx512f"))) void decode_avx512(const float* values, const std::uint8_t* codes,
                                                      std::int64_t numel, float scale, float* out) {
  const __m512 table = _mm512_loadu_ps(values), factor = _mm512_set1_ps(scale);
  for (std::int64_t i = 0; i < numel; i += kWide, codes += kWide / 2) {
    const __m512i places = _mm512_maskz_cvtepu8_epi32(0xFFFF, sixteen_codes(codes));
    const __m512 found = _mm512_maskz_permutexvar_ps(0xFFFF, places, table);
    _mm512_storeu_ps(out + i, _mm512_mul_ps(found, factor));
  }
}

/// Each half of the table is looked up; the fourth bit of a place chooses.
__attribute__((target("avx2"))) void decode_avx2(const float* values, const std::uint8_t* codes, std::int64_t numel,
                                                 float scale, float* out) {
  const __m256 low = _mm256_loadu_ps(values), high = _mm256_loadu_ps(values + 8), factor = _mm256_set1_ps(scale);
  const auto eight = [&](__m128i bytes) __attribute__((target("avx2"), always_inline)) {
    const __m256i places = _mm256_cvtepu8_epi32(bytes);
    const __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(places, 28));
    const __m256 found =
        _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, places), _mm256_permutevar8x32_ps(high, places), is_high);
    return _mm256_mul_ps(found, factor);
  };
  for (std::int64_t i = 0; i < numel; i += kWide, codes += kWide / 2) {
    const __m128i places = sixteen_codes(codes);
    _mm256_storeu_ps(out + i, eight(places));
    _mm256_storeu_ps(out + i + 8, eight(_mm_srli_si128(places, 8)));
  }
}

/// Null where this processor has neither.
DecodeWide decode_wide() {
  return cpu_level() >= CpuLevel::kAvx512 ? decode_avx512 : cpu_level() >= CpuLevel::kAvx2 ? decode_avx2 : nullptr;
}
#else
DecodeWide decode_wide() {
  return nullptr;
}
#endif

/// bitsandbytes rounds a value to one of 65,536 places from -1 to 1 before it takes the nearest code; so do we, for the
/// same bytes. The code of each place.
using Places = std::array<std::uint8_t, 1 << 16>;
const Places& places_of_map(bool with_signs) {
  const auto make = [](const std::array<float, 256>& map) {
    auto places = std::make_unique<Places>();
    for (std::size_t i = 0; i < places->size(); ++i) {
      const float value = -1.0f + static_cast<float>(i) * (2.0f / 65535.0f);
      const auto* above = std::upper_bound(map.begin(), map.end(), value);
      const auto* left = above == map.begin() ? above : above - 1;
      const bool next = left + 1 != map.end() && std::abs(left[1] - value) < std::abs(value - *left);
      (*places)[i] = static_cast<std::uint8_t>(left - map.begin() + (next ? 1 : 0));
    }
    return places;
  };
  static const auto kSigned = make(dynamic_map(true)), kUnsigned = make(dynamic_map(false));
  return with_signs ? *kSigned : *kUnsigned;
}

/// Of kChunk values; in loops of that many, so that compilers use vectors. NaN (of a block of zeros) gives 0.
constexpr std::int64_t kChunk = 32;
void places_of(const float* x, float scale, std::int32_t* places) {
  for (std::int64_t i = 0; i < kChunk; ++i) {
    const float place = (x[i] * scale + 1.0f) * 32767.5f + 0.5f;
    const float above = place > 0.0f ? place : 0.0f;
    places[i] = static_cast<std::int32_t>(above < 65535.0f ? above : 65535.0f);
  }
}

}  // namespace

void block_absmax(const float* x, std::int64_t numel, std::int64_t block, float* absmax) {
  for (std::int64_t begin = 0; begin < numel; begin += block)
    *absmax++ = largest_magnitude(x + begin, std::min(block, numel - begin));
}

void four_bit_absmax(const float* x, std::int64_t numel, std::int64_t block, float* absmax) {
  block_absmax(x, numel, block, absmax);
  if (numel % block != 0) absmax[numel / block] = std::max(absmax[numel / block], kLeastScale);
}

void encode_four_bit(FourBitType type, const float* x, std::int64_t numel, std::int64_t block, const float* absmax,
                     std::uint8_t* codes) {
  const auto& steps = steps_of(type);
  const auto whole = numel / block * block;
  for (std::int64_t begin = 0; begin < whole; begin += block)
    four_bit_codes(steps, x + begin, block, 1.0f / std::max(absmax[begin / block], kLeastScale), codes + begin / 2);
  if (whole == numel) return;
  const float scale = std::max(absmax[whole / block], kLeastScale);
  std::vector<float> scaled(static_cast<std::size_t>((numel - whole + 1) / 2 * 2));  // a zero behind an odd number
  std::transform(x + whole, x + numel, scaled.begin(), [&](float value) { return value / scale; });
  four_bit_codes(steps, scaled.data(), static_cast<std::int64_t>(scaled.size()), 1.0f, codes + whole / 2);
}

void decode_four_bit(FourBitType type, const std::uint8_t* codes, const float* absmax, std::int64_t block,
                     std::int64_t begin, std::int64_t numel, float* out) {
  const auto& pairs = value_pairs(type);
  const auto wide = decode_wide();
  for (std::int64_t i = begin, last = begin + numel; i < last;) {
    const float scale = absmax[i / block];
    const auto end = std::min(last, (i / block + 1) * block);
    if (i % 2 != 0) *out++ = pairs[codes[i++ / 2]][1] * scale;
    const auto whole = (end - i) / kWide * kWide;
    if (whole > 0 && wide != nullptr) {
      wide(four_bit_values(type).data(), codes + i / 2, whole, scale, out);
      i += whole, out += whole;
    }
    for (; i + 1 < end; i += 2) {
      const auto& pair = pairs[codes[i / 2]];
      *out++ = pair[0] * scale;
      *out++ = pair[1] * scale;
    }
    if (i < end) *out++ = pairs[codes[i++ / 2]][0] * scale;
  }
}

void encode_dynamic_block(bool with_signs, const float* x, std::int64_t numel, float absmax, std::uint8_t* codes) {
  const auto& map = places_of_map(with_signs);
  const float scale = 1.0f / absmax;
  std::array<std::int32_t, kChunk> places;
  std::int64_t i = 0;
  for (; i + kChunk <= numel; i += kChunk) {
    places_of(x + i, scale, places.data());
    for (std::size_t k = 0; k < kChunk; ++k)
      codes[i + static_cast<std::int64_t>(k)] = map[static_cast<std::size_t>(places[k])];
  }
  if (i == numel) return;
  std::array<float, kChunk> rest{};
  std::copy(x + i, x + numel, rest.begin());
  places_of(rest.data(), scale, places.data());
  for (std::size_t k = 0; i < numel; ++i, ++k) codes[i] = map[static_cast<std::size_t>(places[k])];
}

void decode_dynamic_block(bool with_signs, const std::uint8_t* codes, std::int64_t numel, float absmax, float* out) {
  const auto& map = dynamic_map(with_signs);
  for (std::int64_t i = 0; i < numel; ++i) out[i] = map[codes[i]] * absmax;
}

void encode_dynamic(bool with_signs, const float* x, std::int64_t numel, std::int64_t block, float* absmax,
                    std::uint8_t* codes) {
  block_absmax(x, numel, block, absmax);
  for (std::int64_t i = 0; i < numel; i += block)
    encode_dynamic_block(with_signs, x + i, std::min(block, numel - i), absmax[i / block], codes + i);
}

void decode_dynamic(bool with_signs, const DynamicCodes& matrix, std::int64_t begin, std::int64_t numel, float* out) {
  const auto& [codes, absmax, block] = matrix;
  for (std::int64_t i = begin, end = begin + numel; i < end;) {
    const auto count = std::min(end, (i / block + 1) * block) - i;
    decode_dynamic_block(with_signs, codes + i, count, absmax[i / block], out + (i - begin));
    i += count;
  }
}

}  // namespace tessera::quant
