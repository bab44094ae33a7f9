#include "optim/projection.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/low_rank_optimizer.h"

namespace tessera::optim {
namespace {

/// apollo-torch: the last of fifteen draws.
std::int64_t next_seed(std::int64_t seed) {
  constexpr std::int64_t kDraws = 15;
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  const auto draws =
      at::randint(0, std::numeric_limits<std::int64_t>::max(), {kDraws}, generator, at::TensorOptions(at::kLong));
  return draws.const_data_ptr<std::int64_t>()[kDraws - 1];
}

}  // namespace

Projection::Projection(const ProjectionSettings& settings, std::int64_t rows, std::int64_t columns, std::int64_t seed)
    : settings_(settings), rows_(rows), columns_(columns), seed_(seed) {
  const auto [left, right] = projected_sides(settings_.proj_type, rows, columns);
  const auto rank = settings_.random ? settings_.rank : std::min({settings_.rank, rows, columns});
  if (left) left_ = at::zeros({rows, rank}, at::kFloat);
  if (right) right_ = at::zeros({rank, columns}, at::kFloat);
}

std::vector<std::int64_t> Projection::low_shape() const {
  return {left_.defined() ? left_.size(1) : rows_, right_.defined() ? right_.size(0) : columns_};
}

bool Projection::needs_gradient(std::int64_t steps) const {
  return !settings_.random && steps % settings_.update_proj_gap == 0;
}

void Projection::follow(const at::Tensor& gradient) {
  const auto [u, s, vh] = at::linalg_svd(gradient, /*full_matrices=*/false);
  if (left_.defined()) left_.copy_(u.slice(1, 0, left_.size(1)));
  if (right_.defined()) right_.copy_(vh.slice(0, 0, right_.size(0)));
}

void Projection::draw(std::int64_t steps) {
  const auto wanted = steps / settings_.update_proj_gap;
  if (!settings_.random || drawn_ == wanted) return;
  auto seed = seed_;
  for (std::int64_t i = 0; i < wanted; ++i) seed = next_seed(seed);
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  auto& side = left_.defined() ? left_ : right_;
  side.copy_(at::randn(side.sizes(), generator, at::TensorOptions(at::kFloat)));
  side.div_(std::sqrt(static_cast<double>(settings_.rank)));
  drawn_ = wanted;
}

void Projection::add_projected(const at::Tensor& rows, std::int64_t first, at::Tensor& low) const {
  const auto here = left_.defined() ? left_.narrow(0, first, rows.size(0)).t().matmul(rows) : rows;
  auto place = left_.defined() ? low : low.narrow(0, first, rows.size(0));
  place.add_(right_.defined() ? here.matmul(right_.t()) : here);
}

at::Tensor Projection::expanded(const at::Tensor& low, std::int64_t first, std::int64_t count) const {
  const auto here = left_.defined() ? left_.narrow(0, first, count).matmul(low) : low.narrow(0, first, count);
  return right_.defined() ? here.matmul(right_) : here;
}

}  // namespace tessera::optim
