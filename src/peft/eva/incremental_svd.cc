#include "peft/eva/incremental_svd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/square.h>
#include <ATen/ops/sum.h>

#include <cmath>

#include "peft/methods/torch_draws.h"

namespace tessera::peft {
namespace {

at::Tensor orthonormal(const at::Tensor& columns) {
  return std::get<0>(at::linalg_qr(columns));
}

struct RightVectors {
  at::Tensor s, vh;
};

/// torch.svd_lowrank(x, q, niter=4) after torch.manual_seed(42) (Halko et al. 2009).
RightVectors low_rank_svd(const at::Tensor& x, std::int64_t q) {
  const bool tall = x.size(0) >= x.size(1);
  const auto a = tall ? x : x.t();
  auto basis = orthonormal(at::mm(a, TorchDraws(42).normal({a.size(1), q}, a.scalar_type())));
  for (int i = 0; i < 4; ++i) basis = orthonormal(at::mm(a, orthonormal(at::mm(a.t(), basis))));
  const auto [u, s, vh] = at::linalg_svd(at::mm(basis.t(), a), /*full_matrices=*/false);
  return {s, tall ? vh : at::mm(basis, u).t()};
}

/// The largest number of each vector is positive.
at::Tensor with_signs(const at::Tensor& vh) {
  return vh * vh.gather(1, at::argmax(at::abs(vh), 1, /*keepdim=*/true)).sign();
}

}  // namespace

at::Tensor IncrementalSvd::with_known(const at::Tensor& rows, const at::Tensor& mean) const {
  if (empty()) return (rows - mean).to(at::kFloat);
  const auto of_batch = at::mean(rows, at::IntArrayRef{0});
  const auto n = static_cast<double>(rows.size(0));
  const double factor = std::sqrt(seen_ / (seen_ + n) * n);
  return at::cat(
      {singular_values_.unsqueeze(1) * components_, rows - of_batch, (factor * (mean_ - of_batch)).unsqueeze(0)});
}

void IncrementalSvd::add(const at::Tensor& given) {
  const auto rows = given.to(at::kFloat);
  const auto n = static_cast<double>(rows.size(0));
  const auto sum_of = [](const at::Tensor& t) {
    return at::sum(t, at::IntArrayRef{0}, /*keepdim=*/false, at::kDouble);
  };
  const auto sum = sum_of(rows), apart = rows - sum / n;
  auto deviations = sum_of(at::square(apart)) - at::square(sum_of(apart)) / n;
  auto mean = sum / n;
  if (!empty()) {
    const double ratio = seen_ / n;
    deviations = deviations_ + deviations + at::square(mean_ * seen_ / ratio - sum) * (ratio / (seen_ + n));
    mean = (mean_ * seen_ + sum) / (seen_ + n);
  }
  auto [s, vh] = low_rank_svd(with_known(rows, mean), 2 * count_);
  vh = with_signs(vh);
  shares_ = (at::square(s) / at::sum(deviations)).narrow(0, 0, count_);
  components_ = vh.narrow(0, 0, count_).contiguous();
  singular_values_ = s.narrow(0, 0, count_);
  mean_ = mean;
  deviations_ = deviations;
  seen_ += n;
}

}  // namespace tessera::peft
