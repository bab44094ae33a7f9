#pragma once
// Sizes of the parts that products in float32 of our own are made of (nn/ops/tiled_gemm.h); a rank's plan of its memory
// counts them, too.
#include <algorithm>
#include <cstdint>

namespace tessera {

/// Of the second factor, which are panels in the second cache at a time: 128 KiB.
inline constexpr std::int64_t kTileDepth = 256, kTileColumns = 128;
/// How much of it is read at a time, into the first cache.
inline constexpr std::int64_t kReadNumel = 1 << 12;

/// The longest inner dimension of float32 factors: packed rows would be too large. A library multiplies longer ones.
inline constexpr std::int64_t kLongestFloatInner = 1 << 14;

/// The rows of a first factor that are packed at a time.
inline std::int64_t packed_rows(std::int64_t rows, std::int64_t inner) {
  constexpr std::int64_t kBytes = 8 << 20, kFewest = 256;
  const auto row_bytes = std::max<std::int64_t>(1, inner * static_cast<std::int64_t>(sizeof(float)));
  return std::min(rows, std::max(kFewest, kBytes / row_bytes / 64 * 64));
}

/// A product that is summed up where its result belongs, in float32 and in one pass: it needs no memory for its sums.
inline bool sums_in_place(std::int64_t inner, bool float32_result) {
  return float32_result && inner <= kTileDepth;
}

/// What a product [rows, inner] [inner, columns] takes beside its factors and its result, on one thread.
inline std::int64_t tiles_bytes(std::int64_t rows, std::int64_t inner, std::int64_t columns, bool float32_result) {
  const auto height = packed_rows(rows, inner);
  const auto sums = sums_in_place(inner, float32_result) ? 0 : height * std::min(columns, kTileColumns);
  return static_cast<std::int64_t>(sizeof(float)) * (height * inner + sums + kTileDepth * kTileColumns + kReadNumel);
}

}  // namespace tessera
