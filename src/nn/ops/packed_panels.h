#pragma once
// A packed matrix as the second factor of a product of bfloat16 in panels: its codes become panels, and no dequantised
// matrix is stored. A codec that can writes a panel itself (tensor::PanelCodec), else a few rows at a time
// are decoded in the first cache.
#include "nn/kernels/bf16_gemm.h"
#include "tensor/panel_codec.h"

namespace tessera::nn {

/// Where a tile's codes lie, which are in row-major order: what will be decoded next.
kernels::MemoryRows memory_of(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile);

/// Refers to the matrix. kRows: the factor is the matrix [rows, columns]; kColumns: its transpose.
class PackedPanels final : public kernels::PanelFactor {
 public:
  PackedPanels(const tensor::PackedMatrix& matrix, tensor::PairsOf pairs);

  bool on_cpu() const { return matrix_.fields.front().is_cpu(); }
  std::int64_t columns() const { return transposed() ? matrix_.rows : matrix_.columns; }
  void pack(const kernels::PanelPart& part, std::uint32_t* out) const override;
  kernels::MemoryRows memory(const kernels::PanelPart& part) const override {
    return memory_of(matrix_, tile_of(part));
  }

 private:
  bool transposed() const { return pairs_ == tensor::PairsOf::kColumns; }
  tensor::MatrixTile tile_of(const kernels::PanelPart& part) const;

  const tensor::PackedMatrix& matrix_;
  const tensor::PanelCodec* codec_;  // null: it has no panels
  tensor::PairsOf pairs_;
};

}  // namespace tessera::nn
