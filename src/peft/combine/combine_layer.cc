#include "peft/combine/combine_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sort.h>

#include <algorithm>
#include <cmath>

namespace tessera::peft {
namespace {

/// The factors with zero rows and columns up to `rank`.
Factors padded(const at::Tensor& a, const at::Tensor& b, std::int64_t rank) {
  return {at::constant_pad_nd(a, {0, 0, 0, rank - a.size(0)}).contiguous(),
          at::constant_pad_nd(b, {0, rank - b.size(1)}).contiguous()};
}

struct Svd {
  at::Tensor u, s, vh;
};

Svd reduced_svd(const at::Tensor& matrix) {
  auto [u, s, vh] = at::linalg_svd(matrix, /*full_matrices=*/false);
  return {u, s, vh};
}

/// Of the sum of the products, through their factors: no matrix of the layer's size is made.
Svd svd_of_sum(const std::vector<LayerShare>& shares) {
  std::vector<at::Tensor> as, bs;
  for (const auto& share : shares) {
    as.push_back(share.a.to(at::kDouble) * (share.weight * share.scaling));
    bs.push_back(share.b.to(at::kDouble));
  }
  const auto [qb, rb] = at::linalg_qr(at::cat(bs, 1));
  const auto [qa, ra] = at::linalg_qr(at::cat(as).t());
  const auto core = reduced_svd(at::mm(rb, ra.t()));
  return {at::mm(qb, core.u).to(at::kFloat), core.s.to(at::kFloat), at::mm(core.vh, qa.t()).to(at::kFloat)};
}

Svd svd_of_products(const std::vector<LayerShare>& shares, const TaskRule& rule) {
  std::vector<TaskTensor> products;
  for (const auto& share : shares)
    products.push_back({at::mm(share.b, share.a) * share.scaling, share.weight, share.key});
  return reduced_svd(combine_tasks(products, rule));
}

/// torch.quantile(values, q), also of more values than that takes.
double value_at_quantile(const at::Tensor& values, double q) {
  const auto sorted = std::get<0>(at::sort(values));
  const double place = q * static_cast<double>(sorted.numel() - 1);
  const auto* data = sorted.const_data_ptr<float>();
  const auto low = static_cast<std::int64_t>(std::floor(place)), high = static_cast<std::int64_t>(std::ceil(place));
  return data[low] + (place - static_cast<double>(low)) * (data[high] - data[low]);
}

}  // namespace

Factors combine_factors(const std::vector<LayerShare>& shares, const TaskRule& rule) {
  std::vector<TaskTensor> as, bs;
  for (const auto& share : shares) {
    const double weight = share.weight * share.scaling, root = std::sqrt(std::abs(weight));
    as.push_back({share.a, weight >= 0 ? root : -root, share.key + ".A"});
    bs.push_back({share.b, root, share.key + ".B"});
  }
  return {combine_tasks(as, rule).contiguous(), combine_tasks(bs, rule).contiguous()};
}

Factors concatenate_factors(const std::vector<LayerShare>& shares, std::int64_t rank) {
  std::vector<at::Tensor> as, bs;
  for (const auto& share : shares) {
    as.push_back(share.a * (share.weight * share.scaling));
    bs.push_back(share.b);
  }
  return padded(at::cat(as), at::cat(bs, 1), rank);
}

Factors decompose_products(const std::vector<LayerShare>& shares, const TaskRule& rule, std::int64_t rank,
                           std::optional<double> clamp) {
  const bool plain = rule.pruning == Pruning::kNone && !rule.elects_signs;
  // With a clamp the signs of singular vectors matter: they are LAPACK's of the whole matrix, as PEFT's are.
  const auto parts = plain && !clamp ? svd_of_sum(shares) : svd_of_products(shares, rule);
  const auto kept = std::min(rank, parts.s.size(0));
  auto b = parts.u.narrow(1, 0, kept) * parts.s.narrow(0, 0, kept), a = parts.vh.narrow(0, 0, kept);
  if (clamp) {
    const double limit = value_at_quantile(at::cat({b.reshape({-1}), a.reshape({-1})}), *clamp);
    a = a.clamp(-limit, limit);
    b = b.clamp(-limit, limit);
  }
  return padded(a, b, rank);
}

}  // namespace tessera::peft
