#pragma once
// Sizes of the parts that products in float32 are made of where a factor has to become float32 first
// (nn/ops/tiled_gemm.h); a rank's plan of its memory counts them, too.
#include <algorithm>
#include <cstdint>

namespace tessera {

inline constexpr std::int64_t kTileDepth = 1024, kTileWidth = 512;  // of the second factor: 2 MiB

/// The rows of a first factor that is not float32 that become so at a time.
inline std::int64_t widened_rows(std::int64_t rows, std::int64_t inner) {
  constexpr std::int64_t kBytes = 8 << 20, kFewest = 256;
  const auto row_bytes = std::max<std::int64_t>(1, inner * static_cast<std::int64_t>(sizeof(float)));
  return std::min(rows, std::max(kFewest, kBytes / row_bytes / 64 * 64));
}

/// What a product [rows, inner] [inner, columns] takes beside its factors and its result. widened: the first factor is
/// not float32.
inline std::int64_t tiles_bytes(std::int64_t rows, std::int64_t inner, std::int64_t columns, bool widened) {
  const auto height = widened ? widened_rows(rows, inner) : rows;
  const auto left = widened ? height * inner : 0;
  const auto of_a_column = height + std::min(inner, kTileDepth);  // sums, and the second factor
  return static_cast<std::int64_t>(sizeof(float)) * (left + of_a_column * std::min(columns, kTileWidth));
}

}  // namespace tessera
