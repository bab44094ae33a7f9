#include "tessera/optim/grad_scaler.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera::optim {
namespace {

/// x *= factor; whether all of x was finite.
bool multiply_and_check(const at::Tensor& x, double factor) {
  std::atomic<bool> finite{true};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "unscale", [&] {
    using A = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    auto* data = x.mutable_data_ptr<scalar_t>();
    const auto f = static_cast<A>(factor);
    at::parallel_for(0, x.numel(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
      A worst = 0;  // 0 * inf and 0 * NaN are NaN and stay
      for (auto i = begin; i < end; ++i) {
        const auto value = static_cast<A>(data[i]);
        worst += value * 0;
        data[i] = static_cast<scalar_t>(value * f);
      }
      if (worst != 0) finite = false;
    });
  });
  return finite;
}

/// The same on another device; waits for it once.
bool multiply_and_check_there(const std::vector<at::Tensor>& grads, double factor) {
  auto worst = at::zeros({}, grads.front().options().dtype(at::kFloat));
  for (const auto& x : grads) {
    worst.add_(x.mul(0).sum(at::kFloat));  // 0 * inf and 0 * NaN are NaN and stay
    x.mul_(factor);
  }
  return worst.item<float>() == 0;
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options), scale_(options.init_scale) {
  const bool good = options.init_scale > 0 && options.growth_factor > 1 && options.backoff_factor > 0 &&
                    options.backoff_factor < 1 && options.growth_interval > 0;
  if (!good)
    throw ConfigError(
        "gradient scaler: expected init_scale > 0, growth_factor > 1, 0 < backoff_factor < 1, growth_interval > 0");
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return loss.mul(scale_);
}

bool GradScaler::unscale(Optimizer& optimizer, comm::Communicator& group) {
  TESSERA_CHECK(!finite_, "unscale() is called once a step; update() ends a step");
  at::NoGradGuard no_grad;
  bool finite = true;
  std::vector<at::Tensor> elsewhere;
  for (const auto& p : optimizer.parameters()) {
    const auto& grad = p.grad();
    if (!grad.defined()) continue;
    if (grad.is_cpu())
      finite = multiply_and_check(grad, 1 / scale_) && finite;
    else
      elsewhere.push_back(grad);
  }
  if (!elsewhere.empty()) finite = multiply_and_check_there(elsewhere, 1 / scale_);
  const at::Tensor flag = at::full({1}, finite ? 1 : 0, at::kLong);
  group.all_reduce(flag, comm::ReduceOp::kMin)->wait();
  finite_ = *flag.const_data_ptr<std::int64_t>() != 0;
  return *finite_;
}

bool GradScaler::step(Optimizer& optimizer, comm::Communicator& group) {
  if (!finite_) unscale(optimizer, group);
  if (*finite_) optimizer.step();
  optimizer.scale_next_gradients(1.0);  // a clip of what was skipped
  return *finite_;
}

void GradScaler::update() {
  TESSERA_CHECK(finite_.has_value(), "update() follows step()");
  if (!*finite_) {
    scale_ *= options_.backoff_factor;
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == options_.growth_interval) {
    const auto grown = scale_ * options_.growth_factor;
    if (std::isfinite(static_cast<float>(grown))) scale_ = grown;
    growth_tracker_ = 0;
  }
  finite_.reset();
}

void GradScaler::load(double scale, std::int64_t growth_tracker) {
  scale_ = scale;
  growth_tracker_ = growth_tracker;
}

}  // namespace tessera::optim
