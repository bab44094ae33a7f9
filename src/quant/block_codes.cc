#include "quant/block_codes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
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

constexpr std::int64_t kWide = 32;  // elements at a time

/// The 16 values, and the bytes of each, from the lowest up.
struct ValueTable {
  alignas(64) std::array<float, 16> values;
  alignas(16) std::array<std::array<std::uint8_t, 16>, 4> bytes;
};
const ValueTable& value_table(FourBitType type) {
  const auto make = [](FourBitType t) {
    ValueTable table{};
    for (std::size_t code = 0; code < 16; ++code) {
      table.values[code] = four_bit_values(t)[code];
      const auto bytes = std::bit_cast<std::array<std::uint8_t, 4>>(table.values[code]);
      for (std::size_t k = 0; k < bytes.size(); ++k) table.bytes[k][code] = bytes[k];
    }
    return table;
  };
  static const ValueTable kNf4 = make(FourBitType::kNf4), kFp4 = make(FourBitType::kFp4);
  return type == FourBitType::kNf4 ? kNf4 : kFp4;
}

using DecodeWide = void (*)(const ValueTable& table, const FourBitRows& rows, float* out, std::int64_t stride);

#if defined(__x86_64__)
/// Of eight bytes.
__attribute__((target("sse4.1"))) inline __m128i sixteen_codes(const std::uint8_t* codes) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)), low_half = _mm_set1_epi8(15);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), low_half), low = _mm_and_si128(bytes, low_half);
  return _mm_unpacklo_epi8(high, low);
}

__attribute__((target("avx512f"))) void decode_avx512(const ValueTable& table, const FourBitRows& x, float* out,
                                                      std::int64_t stride) {
  const __m512 values = _mm512_load_ps(table.values.data());
  const float* scales = x.scales;
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const auto* codes = x.codes + r * x.stride;
    auto* to = out + r * stride;
    for (std::int64_t numel = x.numel; numel > 0; numel -= x.block) {
      const __m512 scale = _mm512_set1_ps(*scales++);
      for (std::int64_t left = std::min(x.block, numel); left > 0; left -= 16, codes += 8, to += 16) {
        const __m512i places = _mm512_maskz_cvtepu8_epi32(0xFFFF, sixteen_codes(codes));
        const __m512 found = _mm512_maskz_permutexvar_ps(0xFFFF, places, values);
        _mm512_storeu_ps(to, _mm512_mul_ps(found, scale));
      }
    }
  }
}

/// Each byte of a value is looked up by itself, 32 at a time; then the bytes of a value are brought together.
__attribute__((target("avx2"))) void decode_avx2(const ValueTable& table, const FourBitRows& x, float* out,
                                                 std::int64_t stride) {
  const auto plane = [&](std::size_t k) __attribute__((target("avx2"), always_inline)) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table.bytes[k].data())));
  };
  const __m256i plane0 = plane(0), plane1 = plane(1), plane2 = plane(2), plane3 = plane(3);
  const __m256i fours = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);  // so that the two lanes' halves end up in order
  const __m128i low_half = _mm_set1_epi8(15);
  const float* scales = x.scales;
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const auto* codes = x.codes + r * x.stride;
    auto* to = out + r * stride;
    for (std::int64_t numel = x.numel; numel > 0; numel -= x.block) {
      const __m256 scale = _mm256_set1_ps(*scales++);
      for (std::int64_t left = std::min(x.block, numel); left > 0; left -= kWide, codes += kWide / 2, to += kWide) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
        const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), low_half), low = _mm_and_si128(bytes, low_half);
        const __m256i in_order = _mm256_set_m128i(_mm_unpackhi_epi8(high, low), _mm_unpacklo_epi8(high, low));
        const __m256i places = _mm256_permutevar8x32_epi32(in_order, fours);
        const __m256i byte0 = _mm256_shuffle_epi8(plane0, places), byte1 = _mm256_shuffle_epi8(plane1, places);
        const __m256i byte2 = _mm256_shuffle_epi8(plane2, places), byte3 = _mm256_shuffle_epi8(plane3, places);
        const __m256i low01 = _mm256_unpacklo_epi8(byte0, byte1), low23 = _mm256_unpacklo_epi8(byte2, byte3);
        const __m256i high01 = _mm256_unpackhi_epi8(byte0, byte1), high23 = _mm256_unpackhi_epi8(byte2, byte3);
        const auto store = [&](std::int64_t at, __m256i values) __attribute__((target("avx2"), always_inline)) {
          _mm256_storeu_ps(to + at, _mm256_mul_ps(_mm256_castsi256_ps(values), scale));
        };
        store(0, _mm256_unpacklo_epi16(low01, low23));
        store(8, _mm256_unpackhi_epi16(low01, low23));
        store(16, _mm256_unpacklo_epi16(high01, high23));
        store(24, _mm256_unpackhi_epi16(high01, high23));
      }
    }
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

const FourBitSteps& four_bit_steps(FourBitType type) {
  static const FourBitSteps kNf4 = make_steps(FourBitType::kNf4), kFp4 = make_steps(FourBitType::kFp4);
  return type == FourBitType::kNf4 ? kNf4 : kFp4;
}

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
  const auto& steps = four_bit_steps(type);
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
    const auto at = i / block, end = std::min(last, (at + 1) * block);
    const float scale = absmax[at];
    if (i % 2 != 0) *out++ = pairs[codes[i++ / 2]][1] * scale;
    if (wide != nullptr) {
      const auto count = (end - i) / kWide * kWide;
      wide(value_table(type), {codes + i / 2, 0, absmax + at, block, count, 1}, out, 0);
      i += count, out += count;
    }
    for (; i + 1 < end; i += 2) {
      const auto& pair = pairs[codes[i / 2]];
      *out++ = pair[0] * scale;
      *out++ = pair[1] * scale;
    }
    if (i < end) *out++ = pairs[codes[i++ / 2]][0] * scale;
  }
}

void decode_four_bit_rows(FourBitType type, const FourBitRows& x, float* out, std::int64_t stride) {
  if (const auto wide = decode_wide(); wide != nullptr && x.block % kWide == 0)
    return wide(value_table(type), x, out, stride);
  const auto blocks = x.numel / x.block;
  for (std::int64_t r = 0; r < x.rows; ++r)
    decode_four_bit(type, x.codes + r * x.stride, x.scales + r * blocks, x.block, 0, x.numel, out + r * stride);
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
