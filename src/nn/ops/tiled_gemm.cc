#include "nn/ops/tiled_gemm.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace tessera::nn {
namespace {

constexpr std::int64_t kTileDepth = 1024, kTileWidth = 512;  // 2 MiB in float32

at::Tensor tile_of(const PackedFactor& b, std::int64_t row, std::int64_t rows, std::int64_t column,
                   std::int64_t columns, at::ScalarType dtype) {
  if (b.transposed) return tensor::unpack(b.matrix, {column, columns, row, rows}, dtype).to(at::kFloat).t();
  return tensor::unpack(b.matrix, {row, rows, column, columns}, dtype).to(at::kFloat);
}

/// Adds to sums, or replaces them at first.
void add_product(const at::Tensor& sums, const at::Tensor& a, const at::Tensor& b, bool first) {
  if (first) {
    gemm_to(sums, a, b);
  } else {
    gemm_add(sums, a, b);
  }
}

}  // namespace

at::Tensor gemm_by_tiles(const at::Tensor& a, const PackedFactor& b, const Addend& addend) {
  const auto dtype = a.scalar_type();
  const std::int64_t inner = a.size(1), columns = b.transposed ? b.matrix.rows : b.matrix.columns;
  const std::int64_t height = dtype == at::kFloat ? a.size(0) : rows_at_a_time(inner);
  auto out = at::empty({a.size(0), columns}, a.options());
  for (std::int64_t row = 0; row < a.size(0); row += height) {
    const auto rows = std::min(height, a.size(0) - row);
    const auto left = a.narrow(0, row, rows).to(at::kFloat);
    for (std::int64_t column = 0; column < columns; column += kTileWidth) {
      const auto width = std::min(kTileWidth, columns - column);
      const auto sums = at::empty({rows, width}, left.options());
      for (std::int64_t begin = 0; begin < inner; begin += kTileDepth) {
        const auto depth = std::min(kTileDepth, inner - begin);
        add_product(sums, left.narrow(1, begin, depth), tile_of(b, begin, depth, column, width, dtype), begin == 0);
      }
      if (addend.u.defined()) {
        gemm_add(sums, addend.u.narrow(0, row, rows).to(at::kFloat), addend.v.narrow(1, column, width).to(at::kFloat));
      }
      out.narrow(0, row, rows).narrow(1, column, width).copy_(sums);
    }
  }
  return out;
}

}  // namespace tessera::nn
