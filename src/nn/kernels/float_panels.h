#pragma once
// A product in float32 whose second factor is made on the way: parts of it become panels that stay in the cache, and a
// panel is multiplied with all rows of the first factor (Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication", 2008). Loops over memory, on one thread. An element's sum goes through a panel's depth in order, so
// that it does not depend on the number of rows and columns beside it; levels of instructions differ in the last bits.
#include <cstdint>

#include "nn/kernels/prefetch.h"

namespace tessera::nn::kernels {

/// Columns of a panel: two vectors of this process's level (base/cpu_level.h): 8, 16 or 32.
std::int64_t float_panel_columns();
constexpr std::int64_t kMostFloatPanelColumns = 32;

/// The first factor a [rows, depth], rows `stride` floats apart, in the order in which panel_product() reads it:
/// rows * depth floats, and kPackedSlack that may be overwritten.
constexpr std::int64_t kPackedSlack = 3;
void pack_rows(const float* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out);
/// The same of one whose columns are contiguous, `stride` floats apart.
void pack_columns(const float* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out);
/// Of bfloat16, as its bits.
void pack_rows(const std::uint16_t* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out);
void pack_columns(const std::uint16_t* a, std::int64_t stride, std::int64_t rows, std::int64_t depth, float* out);

/// A panel [depth, float_panel_columns()] of b [depth, columns], zeros behind its last column.
void panel_of_rows(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t columns, float* panel);
/// The same of a matrix that lies in memory column by column: b [columns, depth].
void panel_of_columns(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t columns, float* panel);

/// Where a product goes: rows `stride` floats apart, which it is added to, or which need not hold anything yet.
struct PanelSums {
  float* at;
  std::int64_t stride;
  bool add;
};
/// sums [rows, float_panel_columns()] = left panel, or += that. Fetches so many lines ahead.
void panel_product(const float* left, std::int64_t rows, const float* panel, std::int64_t depth, const PanelSums& sums,
                   Prefetch& ahead, std::int64_t lines);

}  // namespace tessera::nn::kernels
