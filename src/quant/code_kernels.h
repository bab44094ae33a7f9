#pragma once
// Codes of a few bits as float32, in vectors (base/cpu_dispatch.h). Loops over memory, on one thread; equal bits on
// every processor. Whoever calls them keeps the rows short enough for the first cache.
#include <cstdint>

namespace tessera::quant {

/// At least so many are worth a thread.
constexpr std::int64_t kElementsOfThread = 1 << 15;

/// out[i] = codes[i] * scale.
void scale_int8(const std::int8_t* codes, std::int64_t count, float scale, float* out);

/// Every word's 32 / bits codes, from the low bits up: out[i * 32 / bits + k]. bits: 2, 4 or 8.
void codes_of_words(const std::uint32_t* words, std::int64_t count, int bits, float* out);
/// Of every word the code of four bits that begins at bit `shift`.
void codes_at(const std::uint32_t* words, std::int64_t count, int shift, float* out);

/// x[i] = scale * (x[i] - zero).
void scale_run(float* x, std::int64_t count, float scale, float zero);
/// The same with each element's own, those of its group.
void scale_by_group(float* x, std::int64_t count, const std::int32_t* group, const float* scales, const float* zeros);

/// out[i] = map[codes[i]] * scale + offset, rounded twice. map: 256 values.
void scale_places(const std::uint8_t* codes, std::int64_t count, const float* map, float scale, float offset,
                  float* out);

}  // namespace tessera::quant
