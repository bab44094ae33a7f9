#pragma once
// 4-bit codes as panels of bfloat16 pairs or rows of bfloat16 (tensor::PanelCodec): the 16 values are a table in a
// register. Loops over memory, on one thread; 32 elements of a row that begin together have one scale. Values are
// value * scale in float32, rounded to the nearest bfloat16, and those below 2^-126 are zeros, as the product would
// take them.
#include <cstdint>

namespace tessera::quant {

/// This processor has the instructions (AVX512_BF16); without them nothing else here may be called.
bool decodes_panels();

constexpr std::int64_t kScaleRun = 32;    // elements that share a scale
constexpr std::int64_t kPanelWidth = 64;  // words from one row of a panel to the next

/// A tile of codes: rows row_bytes apart, its first code in the high half of a byte; columns a multiple of kScaleRun.
struct CodeTile {
  const float* values;  // 16, by code
  const std::uint8_t* codes;
  std::int64_t row_bytes, rows, columns;
};

/// Pairs of columns of up to 64 rows. scales: of run k of row n at [kPanelWidth * k + n], readable for whole vectors.
void panel_of_columns(const CodeTile& tile, const float* scales, std::uint32_t* out);
/// Pairs of rows of up to 64 columns. scales: of run k of row r at [2 * r + k].
void panel_of_rows(const CodeTile& tile, const float* scales, std::uint32_t* out);

/// Codes beside each other, a multiple of kScaleRun; the first stands `skipped` elements behind the begin of its block.
struct CodeRun {
  const float* values;  // 16, by code
  const std::uint8_t* codes;
  std::int64_t numel;
  const float* scales;  // by block
  std::int64_t skipped, block;
};
/// out: the values in the same order.
void decoded_run(const CodeRun& run, std::uint16_t* out);

}  // namespace tessera::quant
