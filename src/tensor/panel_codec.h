#pragma once
// What a codec may offer beside tensor::Codec: panels of bfloat16 pairs, or rows of bfloat16, straight from the codes,
// as products read them (nn/kernels/bf16_gemm.h); or products of its own.
#include <cstdint>

#include "tessera/tensor/codec.h"

namespace tessera::tensor {

/// Which two neighbours a word of a panel holds, the first in its low half.
enum class PairsOf { kRows, kColumns };
/// Words from one row of a panel to the next.
constexpr std::int64_t kPanelStride = 64;

class PanelCodec {
 public:
  virtual ~PanelCodec() = default;
  /// The values of a part of the matrix M, rounded to bfloat16, for pairs p and places n, with i = tile.row and
  /// k = tile.column:
  ///   kColumns: out[64 p + n] holds M[i + n, k + 2 p] and M[i + n, k + 2 p + 1]; tile.rows <= 64;
  ///   kRows:    out[64 p + n] holds M[i + 2 p, k + n] and M[i + 2 p + 1, k + n]; tile.columns <= 64.
  /// The neighbour of an odd last row or column is a zero; places after the last one, up to a multiple of 16, take
  /// anything. False, and nothing is written, where this processor or this tile has no fast way: then
  /// Codec::decode() gives the values. Called by several threads at a time.
  virtual bool decode_panel(const PackedMatrix& matrix, const MatrixTile& tile, PairsOf pairs,
                            std::uint32_t* out) const = 0;
  /// The same values in rows, `stride` elements apart. False likewise.
  virtual bool decode_rows(const PackedMatrix& matrix, const MatrixTile& tile, std::uint16_t* out,
                           std::int64_t stride) const = 0;
};

/// A codec that multiplies a few rows itself, because its codes do not lie by rows of the matrix.
class FewRowsCodec {
 public:
  virtual ~FewRowsCodec() = default;
  /// x W^T, float32 [N, rows], on this rank's threads. x: float32 or bfloat16 [N, columns] on the CPU, N from 1 to 8.
  /// Undefined where this processor or this matrix has no fast way.
  virtual at::Tensor few_rows_product(const PackedMatrix& matrix, const at::Tensor& x) const = 0;
};

}  // namespace tessera::tensor
