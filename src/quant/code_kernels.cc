#include "quant/code_kernels.h"

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/code_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::quant {
namespace HWY_NAMESPACE {

void scale_int8(const std::int8_t* codes, std::int64_t count, float scale, float* out) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(codes[i]) * scale;
}

template <int kBits>
void codes_of(const std::uint32_t* words, std::int64_t count, float* out) {
  constexpr int kCodes = 32 / kBits;
  for (std::int64_t i = 0; i < count; ++i, out += kCodes) {
    const std::uint32_t word = words[i];
#pragma omp simd
    for (int k = 0; k < kCodes; ++k)
      out[k] = static_cast<float>(static_cast<std::int32_t>(word >> (kBits * k) & ((1u << kBits) - 1)));
  }
}

void codes_of_words(const std::uint32_t* words, std::int64_t count, int bits, float* out) {
  if (bits == 2) return codes_of<2>(words, count, out);
  if (bits == 4) return codes_of<4>(words, count, out);
  codes_of<8>(words, count, out);
}

void codes_at(const std::uint32_t* words, std::int64_t count, int shift, float* out) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = static_cast<float>(static_cast<std::int32_t>(words[i] >> shift & 15));
}

void scale_run(float* x, std::int64_t count, float scale, float zero) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) x[i] = scale * (x[i] - zero);
}

void scale_by_group(float* x, std::int64_t count, const std::int32_t* group, const float* scales, const float* zeros) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) x[i] = scales[group[i]] * (x[i] - zeros[group[i]]);
}

void scale_places(const std::uint8_t* codes, std::int64_t count, const float* map, float scale, float offset,
                  float* out) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) out[i] = map[codes[i]] * scale + offset;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::quant {

HWY_EXPORT(scale_int8);
HWY_EXPORT(codes_of_words);
HWY_EXPORT(codes_at);
HWY_EXPORT(scale_run);
HWY_EXPORT(scale_by_group);
HWY_EXPORT(scale_places);

void scale_int8(const std::int8_t* codes, std::int64_t count, float scale, float* out) {
  TESSERA_DISPATCH(scale_int8)(codes, count, scale, out);
}
void codes_of_words(const std::uint32_t* words, std::int64_t count, int bits, float* out) {
  TESSERA_DISPATCH(codes_of_words)(words, count, bits, out);
}
void codes_at(const std::uint32_t* words, std::int64_t count, int shift, float* out) {
  TESSERA_DISPATCH(codes_at)(words, count, shift, out);
}
void scale_run(float* x, std::int64_t count, float scale, float zero) {
  TESSERA_DISPATCH(scale_run)(x, count, scale, zero);
}
void scale_by_group(float* x, std::int64_t count, const std::int32_t* group, const float* scales, const float* zeros) {
  TESSERA_DISPATCH(scale_by_group)(x, count, group, scales, zeros);
}
void scale_places(const std::uint8_t* codes, std::int64_t count, const float* map, float scale, float offset,
                  float* out) {
  TESSERA_DISPATCH(scale_places)(codes, count, map, scale, offset, out);
}

}  // namespace tessera::quant
#endif
