#include "nn/ops/dora.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sqrt.h>

#include <algorithm>
#include <vector>

namespace tessera::nn {

at::Tensor squared_norms(const at::Tensor& weight, std::int64_t dim) {
  const at::NoGradGuard no_grad;
  return at::linalg_vector_norm(weight, 2, at::IntArrayRef{dim}, false, at::kFloat).square_();
}

at::Tensor squared_norms(const Weight& weight) {
  if (!weight.packed()) return squared_norms(weight.tensor(), 1);
  constexpr std::int64_t kRows = 256;
  std::vector<at::Tensor> parts;
  for (std::int64_t row = 0; row < weight.out_features(); row += kRows)
    parts.push_back(
        squared_norms(weight.dequantised_rows(row, std::min(kRows, weight.out_features() - row), at::kFloat), 1));
  return at::cat(parts);
}

at::Tensor adapted_norms(const at::Tensor& squares, const at::Tensor& wa, const at::Tensor& a, const at::Tensor& b,
                         double scaling) {
  const at::NoGradGuard no_grad;
  const auto a32 = a.to(at::kFloat), b32 = b.to(at::kFloat);
  const auto cross = (wa.to(at::kFloat) * b32).sum(1);
  const auto own = (at::mm(b32, at::mm(a32, a32.t())) * b32).sum(1);
  return (squares + cross.mul_(2 * scaling) + own.mul_(scaling * scaling)).clamp_min_(0).sqrt_();
}

}  // namespace tessera::nn
