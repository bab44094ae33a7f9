#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "optim/adamw_kernel.h"
#include "tessera/base/error.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {
namespace {

/// Elements [begin, end), decayed or not.
struct Run {
  std::int64_t begin, end;
  bool decay;
};

std::vector<Run> split_runs(std::int64_t numel, const std::vector<std::pair<std::int64_t, std::int64_t>>& no_decay) {
  std::vector<Run> runs;
  std::int64_t at = 0;
  for (auto [begin, end] : no_decay) {
    if (begin < at || end < begin || end > numel)
      throw ConfigError("AdamW: no_decay ranges must be ascending, disjoint and inside the parameter of " +
                        std::to_string(numel) + " elements, found [" + std::to_string(begin) + ", " +
                        std::to_string(end) + ")");
    if (at < begin) runs.push_back({at, begin, true});
    if (begin < end) runs.push_back({begin, end, false});
    at = end;
  }
  if (at < numel) runs.push_back({at, numel, true});
  return runs;
}

void check_parameter(const at::Tensor& p, std::size_t i) {
  if (!p.is_contiguous() || !at::isFloatingType(p.scalar_type()))
    throw ConfigError("AdamW: parameter " + std::to_string(i) + " must be contiguous and floating, found dtype " +
                      c10::toString(p.scalar_type()));
}

}  // namespace

struct AdamW::Impl {
  AdamWOptions options;
  std::vector<at::Tensor> exp_avg, exp_avg_sq;  // 1-D, like the parameters
  std::vector<std::vector<Run>> runs;
  std::int64_t steps = 0;

  AdamWStep scalars(bool decay) const {
    const auto t = static_cast<double>(steps);
    return {options.beta1,
            options.beta2,
            options.eps,
            decay ? 1 - options.lr * options.weight_decay : 1.0,
            options.lr / (1 - std::pow(options.beta1, t)),
            1 / std::sqrt(1 - std::pow(options.beta2, t))};
  }

  void update(std::size_t i, const at::Tensor& p, const at::Tensor& grad) {
    const auto decayed = scalars(true), undecayed = scalars(false);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, p.scalar_type(), "adamw", [&] {
      auto *pp = p.mutable_data_ptr<scalar_t>(), *m = exp_avg[i].mutable_data_ptr<scalar_t>();
      auto* v = exp_avg_sq[i].mutable_data_ptr<scalar_t>();
      const auto* g = grad.const_data_ptr<scalar_t>();
      at::parallel_for(0, p.numel(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
        for (const auto& run : runs[i]) {
          const auto from = std::max(begin, run.begin), to = std::min(end, run.end);
          if (from < to)
            adamw_range(run.decay ? decayed : undecayed, to - from, pp + from, g + from, m + from, v + from);
        }
      });
    });
    p.unsafeGetTensorImpl()->bump_version();  // the kernel writes behind autograd's back
  }
};

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions options)
    : Optimizer(std::move(parameters)), impl_(std::make_unique<Impl>()) {
  if (!options.no_decay.empty() && options.no_decay.size() != parameters_.size())
    throw ConfigError("AdamW: no_decay must hold one list for each of the " + std::to_string(parameters_.size()) +
                      " parameters, found " + std::to_string(options.no_decay.size()));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    check_parameter(parameters_[i], i);
    const auto p = parameters_[i].detach();
    impl_->exp_avg.push_back(at::zeros_like(p));
    impl_->exp_avg_sq.push_back(at::zeros_like(p));
    impl_->runs.push_back(split_runs(
        p.numel(), options.no_decay.empty() ? decltype(options.no_decay)::value_type{} : options.no_decay[i]));
  }
  impl_->options = std::move(options);
}

AdamW::~AdamW() = default;

void AdamW::step() {
  ++impl_->steps;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& p = parameters_[i];
    auto grad = p.grad();
    if (!grad.defined() || p.numel() == 0) continue;
    if (grad.scalar_type() != p.scalar_type() || !grad.is_contiguous()) grad = grad.to(p.scalar_type()).contiguous();
    impl_->update(i, p, grad);
  }
}

void AdamW::set_lr(double lr) {
  impl_->options.lr = lr;
}
double AdamW::lr() const {
  return impl_->options.lr;
}
std::int64_t AdamW::steps() const {
  return impl_->steps;
}

std::vector<std::pair<std::string, std::vector<at::Tensor>>> AdamW::state() const {
  return {{"exp_avg", impl_->exp_avg}, {"exp_avg_sq", impl_->exp_avg_sq}};
}

void AdamW::load_state(const std::vector<std::pair<std::string, std::vector<at::Tensor>>>& state, std::int64_t steps) {
  at::NoGradGuard no_grad;
  for (const auto& [name, mine] : this->state()) {
    const std::vector<at::Tensor>* given = nullptr;
    for (const auto& [other, tensors] : state)
      if (other == name) given = &tensors;
    if (!given || given->size() != mine.size())
      throw CheckpointError("AdamW: expected " + std::to_string(mine.size()) + " tensors of state '" + name +
                            "', found " + std::to_string(given ? given->size() : 0));
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if ((*given)[i].numel() != mine[i].numel())
        throw CheckpointError("AdamW: state '" + name + "' of parameter " + std::to_string(i) + " has " +
                              std::to_string((*given)[i].numel()) + " elements, expected " +
                              std::to_string(mine[i].numel()));
      mine[i].copy_((*given)[i].view_as(mine[i]));
    }
  }
  impl_->steps = steps;
}

}  // namespace tessera::optim
