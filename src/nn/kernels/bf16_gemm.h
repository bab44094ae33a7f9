#pragma once
// Large matrix products of bfloat16 (as its bits) with sums in float32, by AMX's tiles where there are
// (bf16_gemm_amx.h), else by the dot-product instruction of bf16_dot.h (bf16_gemm_dot.h). The second factor is packed
// in panels of 64 columns, the next ones are fetched meanwhile, and tiles of sums stay in registers for a part of the
// inner dimension: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008. An element's sum
// is added in an order that depends on the inner dimension alone.
#include <cstddef>
#include <cstdint>

#include "nn/kernels/prefetch.h"

namespace tessera::nn::kernels {

/// This processor has the instructions; without them nothing else here may be called.
bool has_bf16_gemm();

/// Element (i, j) stands at at[i * row + j * column]; one of the two strides is 1.
struct Bfloat16Matrix {
  const std::uint16_t* at;
  std::int64_t row, column;
};

constexpr std::int64_t kPanelColumns = 64;

/// Rows [row, row + rows) and columns [column, column + columns) of a second factor, at most kPanelColumns.
struct PanelPart {
  std::int64_t row, rows, column, columns;
};

/// A second factor [inner, columns] that is no matrix in memory: it makes its panels itself.
class PanelFactor {
 public:
  virtual ~PanelFactor() = default;
  /// Word (p, n) of [(rows + 1) / 2, kPanelColumns]: elements 2 p (in its low half) and 2 p + 1 of column n; a zero
  /// after an odd last row, anything after the last column, up to a multiple of 16. Called by several threads.
  virtual void pack(const PanelPart& part, std::uint32_t* out) const = 0;
  /// What pack() will read.
  virtual MemoryRows memory(const PanelPart& part) const = 0;
};

/// a [rows, inner] b [inner, columns] + u [rows, rank] v [rank, columns]; no second product where rank is 0. Where the
/// elements of a row of a are beside each other, inner is even. u has such rows; rank is even. b stands at b, or is the
/// columns of `factor` from first_column on.
struct Bf16Gemm {
  Bfloat16Matrix a, b, u, v;
  std::int64_t rows, columns, inner, rank;
  const PanelFactor* factor = nullptr;
  std::int64_t first_column = 0;
};

/// The first of `rows` rows, `stride` elements apart; takes alpha * product, or that is added. Or the first of
/// `columns` rows: the transpose of alpha * product, where can_turn() and nothing is added.
struct Bf16GemmOutput {
  std::uint16_t* at;
  std::int64_t stride;
  bool add;
  float alpha;
  bool turned = false;
};

/// Whether the transpose of this product can be written.
bool can_turn(const Bf16Gemm& product);

/// Memory that bf16_gemm() writes on its way, at most 2.3 MiB (without tiles 3.3) beside 2 KiB for each of a rank.
std::size_t bf16_gemm_scratch_bytes(const Bf16Gemm& product);

/// On one thread.
void bf16_gemm(const Bf16Gemm& product, const Bf16GemmOutput& out, void* scratch);

}  // namespace tessera::nn::kernels
