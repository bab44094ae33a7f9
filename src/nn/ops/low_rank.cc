#include "nn/ops/low_rank.h"
#include "nn/ops/device.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "nn/kernels/bf16_dot.h"
#include "nn/kernels/bf16_tiles.h"
#include "nn/kernels/low_rank_kernels.h"
#include "nn/ops/gemm.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kLargestRank = 16;
constexpr std::int64_t kColumnGrain = 256;  // of a gradient, for another thread

/// u: the factor with R columns. All dense but for `b`, if there is one, which may be a transposed view. Where there
/// are tiles a library uses them.
bool uses_bf16_dot(const at::Tensor& u, const at::Tensor& x, const at::Tensor& b = {}) {
  const std::int64_t r = u.size(-1);
  const auto fits = [](const at::Tensor& t) { return has_kernels(t) && t.scalar_type() == at::kBFloat16; };
  return fits(u) && fits(x) && x.is_contiguous() && r % 2 == 0 && r <= kLargestRank && x.numel() > 0 &&
         (!b.defined() || (fits(b) && (b.is_contiguous() || b.t().is_contiguous()))) && kernels::has_bf16_dot() &&
         !kernels::has_bf16_tiles();
}

const std::uint16_t* bits(const at::Tensor& t) {
  return static_cast<const std::uint16_t*>(t.const_data_ptr());
}
std::uint16_t* mutable_bits(const at::Tensor& t) {
  return static_cast<std::uint16_t*>(t.mutable_data_ptr());
}

template <class T>
void transpose(const T* x, T* y, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = 0; r < rows; ++r) y[c * rows + r] = x[r * columns + c];
}

std::int64_t rows_grain(std::int64_t m) {
  return std::max<std::int64_t>(1, kGrain / m);
}

}  // namespace

at::Tensor low_rank_project(const at::Tensor& x, const at::Tensor& a, double scale) {
  const std::int64_t rows = x.size(0), m = x.size(1), r = a.size(0);
  const auto u = at::empty({rows, r}, x.options());
  if (!uses_bf16_dot(u, x, a)) {
    gemm_to(u, x, a.t(), scale);
    return u;
  }
  std::vector<std::uint16_t> dense;
  if (!a.is_contiguous()) transpose(bits(a), (dense.resize(static_cast<std::size_t>(r * m)), dense.data()), m, r);
  const auto* rows_of_a = dense.empty() ? bits(a) : dense.data();
  at::parallel_for(0, rows, rows_grain(m), [&](std::int64_t begin, std::int64_t end) {
    kernels::low_rank_project(bits(x) + begin * m, rows_of_a, mutable_bits(u) + begin * r, {end - begin, m, m, r},
                              static_cast<float>(scale));
  });
  return u;
}

at::Tensor low_rank_gradient(const at::Tensor& u, const at::Tensor& x, double scale) {
  const std::int64_t rows = x.size(0), m = x.size(1), r = u.size(1);
  if (!uses_bf16_dot(u, x)) {
    const auto g = at::empty({r, m}, x.options());
    gemm_to(g, u.t(), x, scale);
    return g;
  }
  const auto sums = at::zeros({r, m}, x.options().dtype(at::kFloat));
  at::parallel_for(0, m, kColumnGrain, [&](std::int64_t begin, std::int64_t end) {
    kernels::low_rank_gradient(bits(u), bits(x) + begin, sums.mutable_data_ptr<float>() + begin,
                               {rows, end - begin, m, r});
  });
  return sums.mul_(scale).to(x.scalar_type());
}

}  // namespace tessera::nn
