#include "nn/ops/widened_gemm.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "base/cpu_level.h"
#include "nn/ops/gemm.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kRowsOfDotProducts = 4;

}  // namespace

bool needs_widening(const at::Tensor& a, bool contiguous_columns) {
  if (!a.is_cpu() || (a.size(-2) <= kRowsOfDotProducts && a.stride(-1) == 1 && contiguous_columns)) return false;
  return a.scalar_type() == at::kHalf || (a.scalar_type() == at::kBFloat16 && !multiplies_bfloat16());
}

bool needs_widening(const at::Tensor& a, const at::Tensor& b) {
  return needs_widening(a, b.stride(-2) == 1);
}

void widened_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addend& addend, double alpha,
                  bool add) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  if (a.dim() == 3) {
    const auto product = gemm(a.to(at::kFloat), b.to(at::kFloat)).mul_(alpha);
    out.copy_(add ? product.add_(out) : product);
    return;
  }
  const auto tile_of = [&](const tensor::MatrixTile& tile) {
    const auto part = b.narrow(0, tile.row, tile.rows).narrow(1, tile.column, tile.columns);
    return b.stride(0) == 1 ? part.t().to(at::kFloat).t() : part.to(at::kFloat);
  };
  gemm_by_tiles(out, a, tile_of, addend, alpha, add);
}

}  // namespace tessera::nn
