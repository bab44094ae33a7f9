#include "nn/ops/tiled_gemm.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/gemm_tiles.h"
#include "nn/ops/gemm.h"

namespace tessera::nn {

void gemm_by_tiles(const at::Tensor& out, const at::Tensor& a, const TileSource& b, const Addend& addend, double alpha,
                   bool add) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const std::int64_t inner = a.size(1), columns = out.size(1);
  const auto height = a.scalar_type() == at::kFloat ? a.size(0) : widened_rows(a.size(0), inner);
  for (std::int64_t row = 0; row < a.size(0); row += height) {
    const auto rows = std::min(height, a.size(0) - row);
    const auto left = a.narrow(0, row, rows).to(at::kFloat);
    const auto few = addend.u.defined() ? addend.u.narrow(0, row, rows).to(at::kFloat) : at::Tensor();
    for (std::int64_t column = 0; column < columns; column += kTileWidth) {
      const auto width = std::min(kTileWidth, columns - column);
      const auto sums = at::zeros({rows, width}, left.options());
      for (std::int64_t begin = 0; begin < inner; begin += kTileDepth) {
        const auto depth = std::min(kTileDepth, inner - begin);
        gemm_add(sums, left.narrow(1, begin, depth), b({begin, depth, column, width}), alpha);
      }
      if (few.defined()) gemm_add(sums, few, addend.v.narrow(1, column, width).to(at::kFloat), alpha);
      const auto place = out.narrow(0, row, rows).narrow(1, column, width);
      if (add) sums.add_(place);
      place.copy_(sums);
    }
  }
}

}  // namespace tessera::nn
