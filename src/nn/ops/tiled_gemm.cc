#include "nn/ops/tiled_gemm.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "nn/ops/gemm.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kTileDepth = 1024, kTileWidth = 512;            // 2 MiB in float32
constexpr std::int64_t kWidenedBytes = 8 << 20, kFewestWidened = 256;  // of a's rows that are not float32

std::int64_t rows_at_a_time(const at::Tensor& a) {
  if (a.scalar_type() == at::kFloat) return std::max<std::int64_t>(1, a.size(0));
  const auto row_bytes = std::max<std::int64_t>(1, a.size(1) * static_cast<std::int64_t>(sizeof(float)));
  return std::max(kFewestWidened, kWidenedBytes / row_bytes / 64 * 64);
}

}  // namespace

void gemm_by_tiles(const at::Tensor& out, const at::Tensor& a, const TileSource& b, const Addend& addend, double alpha,
                   bool add) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const std::int64_t height = rows_at_a_time(a), inner = a.size(1), columns = out.size(1);
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
