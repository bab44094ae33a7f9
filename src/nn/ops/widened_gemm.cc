#include "nn/ops/widened_gemm.h"

#include <algorithm>

#include "base/cpu_level.h"
#include "nn/ops/gemm.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kRowBytes = 8 << 20, kFewestRows = 256;        // of a's part in float32
constexpr std::int64_t kColumnBytes = 2 << 20, kFewestColumns = 128;  // of b's
constexpr std::int64_t kRowsOfDotProducts = 4;

bool multiplies_bfloat16() {
#if defined(__x86_64__)
  return cpu_level() >= CpuLevel::kAvx512Bf16;
#else
  static const bool has_units = !native_bfloat16().empty();
  return has_units;
#endif
}

/// Rows or columns of a part, each of `inner` floats.
std::int64_t part_size(std::int64_t bytes, std::int64_t inner, std::int64_t fewest) {
  const auto fitting = bytes / std::max<std::int64_t>(1, inner * static_cast<std::int64_t>(sizeof(float)));
  return std::max(fewest, fitting / 64 * 64);
}

void finish(const at::Tensor& out, at::Tensor product, double alpha, bool add) {
  if (alpha != 1) product.mul_(alpha);
  if (add) product.add_(out);
  out.copy_(product);
}

}  // namespace

std::int64_t rows_at_a_time(std::int64_t inner) {
  return part_size(kRowBytes, inner, kFewestRows);
}

bool is_widened(at::ScalarType dtype) {
  return dtype == at::kHalf || (dtype == at::kBFloat16 && !multiplies_bfloat16());
}

bool needs_widening(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_cpu() || (a.size(-2) <= kRowsOfDotProducts && a.stride(-1) == 1 && b.stride(-2) == 1)) return false;
  return is_widened(a.scalar_type());
}

void widened_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addend& addend, double alpha,
                  bool add) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  if (a.dim() == 3) return finish(out, gemm(a.to(at::kFloat), b.to(at::kFloat)), alpha, add);
  const std::int64_t rows = a.size(0), inner = a.size(1), columns = b.size(1);
  const std::int64_t height = rows_at_a_time(inner);
  const std::int64_t width = part_size(kColumnBytes, inner, kFewestColumns);
  for (std::int64_t row = 0; row < rows; row += height) {
    const auto count = std::min(height, rows - row);
    const auto left = a.narrow(0, row, count).to(at::kFloat);
    const auto few = addend.u.defined() ? addend.u.narrow(0, row, count).to(at::kFloat) : at::Tensor();
    for (std::int64_t column = 0; column < columns; column += width) {
      const auto part = std::min(width, columns - column);
      auto product = gemm(left, b.narrow(1, column, part).to(at::kFloat));
      if (few.defined()) gemm_add(product, few, addend.v.narrow(1, column, part).to(at::kFloat));
      finish(out.narrow(0, row, count).narrow(1, column, part), std::move(product), alpha, add);
    }
  }
}

}  // namespace tessera::nn
